"""The dashboard: a page in a browser that shows the locks of a server live. Needs the extra `dashboard`."""
