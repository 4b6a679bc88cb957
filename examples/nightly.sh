# The job of nightly.crontab, which `pyredisson run` starts while it holds the lock, and stops if the lock is lost.
# What it writes to a database may carry the fencing token, so that the database refuses a run of the past.
# By hand: pyredisson run example:nightly -- sh nightly.sh
echo "the nightly job is done under $PYREDISSON_LOCK, with fencing token $PYREDISSON_FENCING_TOKEN"
