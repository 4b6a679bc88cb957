"""Which release this is."""

VERSION = "0.1.0"
# A constant, as what reads it from the installed distribution imports modules when it is called: an import that
# a signal interrupts leaves the module locked, and whoever connects next would wait for ever.
