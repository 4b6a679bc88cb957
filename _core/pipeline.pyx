# The hot part of a pipelined connection of asyncio: sending commands, and handing out the replies.


@cython.final
cdef class AppliedReply:
    """The reply to a command: it is applied, and then the future gets it.

    So a task that `apply` wakes goes on before the task that has sent the command.
    """

    cdef object future
    cdef object apply

    def __cinit__(self, future, apply):
        self.future = future
        self.apply = apply

    def done(self):
        """Whether the future is done. A reply to a caller that was cancelled isn't applied: the caller undoes it."""
        return self.future.done()

    def set_result(self, reply):
        try:
            self.apply(reply)
        except BaseException as error:
            self.set_exception(error)
            if not isinstance(error, Exception):
                raise
        # A signal handler may have cancelled the caller on any line of `apply`.
        if not self.future.done():
            self.future.set_result(reply)

    def set_exception(self, error):
        """There is no reply to apply."""
        if not self.future.done():
            self.future.set_exception(error)


cdef class PipelineFields:
    """The fields of `pyredisson._backends.aio.connection.Pipeline`, where their meaning is documented."""

    cdef public object loop
    cdef public unsigned long thread
    cdef public object state
    cdef public object on_reply
    cdef public object _transport
    cdef public IdleCheck _idle_check
    cdef public object _replies
    cdef public list _unsent
    cdef public bint _send_at_once
    cdef bint _writing
    cdef public object _timer
    cdef public bytearray _buffer
    cdef public ReplyReader _reader

    def submit(self, bytes payload not None):
        """Sends a command, at once if commands come one by one, else with others of this loop iteration.

        Returns a future of the reply.
        """
        future = self.loop.create_future()
        self.put(payload, future)
        return future

    def send(self, bytes payload not None, apply=None):
        """As `submit`, but the future is for one task that awaits it.

        `apply` is called with the reply before any task goes on.
        """
        return self.send_one(payload, apply)

    cdef TaskFuture send_one(self, bytes payload, apply):
        # This is faster than a call of the class.
        cdef TaskFuture future = TaskFuture.__new__(TaskFuture)
        future.loop = self.loop
        self.put(payload, future if apply is None else AppliedReply(future, apply))
        return future

    cdef put(self, bytes payload, future):
        cdef bint at_once = self._send_at_once and not self._replies and not self._idle_check.closed()
        if not at_once and not self._unsent:
            # First: after an interrupt in here the future must not wait for a reply, which would be another one's.
            self.loop.call_soon(self.flush)
        self.add(payload, future)
        if at_once:
            self._write_unsent()
        if self._timer is None:
            self._check_timeout()

    cdef add(self, bytes payload, future):
        """Adds a command that is to be written: no other code runs in here."""
        self._unsent.append(payload)
        try:
            self._replies.append(future)
        except MemoryError:
            self._unsent.pop()
            raise

    def check_timeout(self):
        """Called by the timer. No signal's handler runs in here, but one may raise anywhere in `_check_timeout`."""
        try:
            self._check_timeout()
        except BaseException:
            # It is called once more, or the commands without a reply would wait without an end.
            if self._timer is not None:
                self._timer.cancel()
            self._timer = self.loop.call_soon(self.check_timeout)
            raise

    def gather(self, payloads, futures):
        """Adds commands that are to be written. Their replies go to `futures`."""
        cdef Py_ssize_t i
        for i in range(len(payloads)):
            self.add(payloads[i], futures[i])

    def _write_unsent(self):
        """Writes the commands that have gathered, in the order of their futures."""
        cdef list commands
        if self._writing:
            # The garbage collector runs a finalizer in the middle of a write, which is to come first.
            return
        self._writing = True
        try:
            while self._unsent:
                commands = []
                commands, self._unsent = self._unsent, commands
                self._transport.write(commands[0] if len(commands) == 1 else b"".join(commands))
        except BaseException as error:
            # An interrupt: nobody knows what was sent, and each reply behind it would go to another command.
            self._on_write_failed(error)
            raise
        finally:
            self._writing = False

    def hand_out_replies(self, Py_ssize_t size):
        """Parses so many bytes of the buffer, and gives each reply to the future of its command, or to `on_reply`.

        Then the tasks go on that wait for the replies, and the tasks that were woken by `apply`.
        """
        cdef Delivery delivery = Delivery(self.loop)
        delivery.begin()
        try:
            self.parse(size)
        except BaseException as error:
            delivery.end()
            delivery.wake_tasks_soon()
            if not isinstance(error, Exception):
                # An interrupt. The replies behind this one have come already: they don't wait for another read.
                self.loop.call_soon(self.read_on)
            raise
        delivery.end()
        delivery.wake_tasks()

    cdef parse(self, Py_ssize_t size):
        cdef Py_ssize_t count = 0
        cdef object on_reply = self.on_reply
        self._reader.feed(self._buffer, size)
        # No reply begins with it, so `get_buffer` sees whether a read was handed out.
        self._buffer[0] = 0
        while True:
            reply = self._reader.gets()
            if reply is False:
                break
            if on_reply is not None:
                on_reply(reply)
                continue
            future = self._replies.popleft()
            count += 1
            if isinstance(reply, Exception):
                try:
                    self._on_error_reply(reply)
                except BaseException as error:
                    # An interrupt: the command has no longer a place among the waiting ones.
                    if not future.done():
                        future.set_exception(error)
                    raise
                if not future.done():
                    future.set_exception(reply)
            elif not future.done():
                # Else the caller was cancelled.
                future.set_result(reply)
        self._send_at_once = count <= 1


cdef class PipelineSender:
    """Sends over the pipeline in use. A subclass makes the next one, in `_connect_and_send`."""

    cdef public PipelineFields pipeline
    cdef object open_state

    def __init__(self, open_state):
        """`open_state`: the state of a pipeline that takes commands."""
        self.pipeline = None
        self.open_state = open_state

    cdef PipelineFields usable(self):
        """The pipeline, if it is open, and its event loop is the running one, as `SleepsFields.run_here` says."""
        cdef PipelineFields pipeline
        with cython.critical_section(self):
            # Another event loop, on another thread, may put its own here.
            pipeline = self.pipeline
        if pipeline is None or pipeline.thread != PyThread_get_thread_ident():
            return None
        return pipeline if pipeline.state is self.open_state and runs(pipeline.loop) else None

    def send(self, bytes payload not None, *, new_connection=False):
        """Sends one command and returns its reply, as an awaitable.

        `new_connection` changes nothing here. A pipeline that has failed, or has met a server that isn't the master,
        isn't used again, and the handshake of the next one has the server drop it.
        """
        cdef PipelineFields pipeline = self.usable()
        if pipeline is not None:
            return pipeline.send_one(payload, None)
        return self._connect_and_send(payload)

    def send_then(self, bytes payload not None, apply not None):
        """As `send`, and calls `apply` with the reply before any task goes on, see `Sender`."""
        cdef PipelineFields pipeline = self.usable()
        if pipeline is not None:
            return pipeline.send_one(payload, apply)
        return self._connect_and_send(payload, apply)
