"""The hot paths: slots, names, commands, the timer wheel and the round trip."""

from _thread import LockType
from asyncio import AbstractEventLoop, Future, TimerHandle, Transport
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Generator, Hashable, Iterator
from contextvars import Context
from socket import socket
from typing import Any, Generic, ParamSpec, TypeVar, final

_P = ParamSpec("_P")
_T = TypeVar("_T")

def crc16(data: bytes) -> int:
    """The CRC16 (XMODEM) with which Redis hashes a key."""

def slot(name: str | bytes) -> int:
    """The cluster slot of a key, 0 to 16383: the slot of its hash tag, if it has one."""

def slot_of_command(payload: bytes) -> int:
    """The slot of a packed command's first key; -1: it has no key. ValueError: these bytes are no command.

    The first key of EVAL and EVALSHA follows the number of keys. Of any other command it is the first argument.
    """

@final
class SlotMap:
    """Which node serves which slot. A node is any object; None: no node is known.

    Threads need no lock around it: each method is a single step, which neither a signal's handler nor another thread
    divides. (Only a finalizer of a node, if it has one, could run within `assign`.)
    """

    def assign(self, first: int, last: int, node: object) -> None:
        """Assigns the slots from `first` to `last`, both included, to `node`. ValueError: no such slots."""

    def node(self, key: str | bytes) -> object:
        """The node that serves the key's slot, or None."""

    def node_of_slot(self, number: int) -> object:
        """The node that serves a slot, or None. ValueError: there is no such slot."""

    def node_for(self, payload: bytes) -> object:
        """The node for a packed command: the one that serves the slot of its first key, as in `slot_of_command`.

        None: the command has no key, or no node is known. ValueError: these bytes are no command.
        """

def prefixed(prefix: bytes, name: bytes) -> bytes:
    """`prefix:{name}`, or `prefix:name` where the name contains a `{`."""

def suffixed(name: bytes, suffix: bytes) -> bytes:
    """`{name}:suffix`, or `name:suffix` where the name contains a `{`."""

def latch_channel(name: bytes) -> bytes:
    """The channel of a count-down latch. Braces are added also to a name that contains some, as in Redisson."""

def parts_on_cluster(name: bytes) -> bool:
    """Whether the braces in a name put its companion keys and channels into other slots than the name itself.

    Of a name that stays together, only the channel of a count-down latch may be in another slot: if it contains a `{`.
    """

def pack(head: bytes, *args: bytes | int) -> bytes:
    """`head`, and after it each argument as a RESP bulk string.

    For a command whose beginning never changes: `head` (array header, EVALSHA, SHA1, number of keys) is made once, and
    each call costs only the keys and the arguments. An int becomes its decimal digits, and must fit into 64 bits.
    TypeError: an argument is neither bytes nor int (a bool isn't an int here).
    """

def command(*args: bytes | str | int) -> bytes:
    """A whole command: the array header, and each argument as a RESP bulk string."""

class Timer:
    """An entry of a `Wheel`; to be subclassed. It can be in one wheel at a time."""

    __slots__ = ()

    @property
    def due(self) -> int:
        """The tick at which the timer is due; -1 when it is in no wheel."""

@final
class Wheel:
    """A hierarchical timing wheel: which timers are due at which tick.

    A tick is an int from 0 to 2**63 - 1. The caller decides what a tick means, and passes the present one. The wheel
    owns its timers. The garbage collector doesn't look into a wheel, so a timer that refers to its wheel keeps both
    alive until it is taken out.

    Any thread may call any method under the GIL without another lock.
    """

    def __init__(self, now: int = 0) -> None: ...
    def __len__(self) -> int: ...
    def add(self, timer: Timer, due: int, group: int = 0) -> None:
        """Adds `timer`, due at tick `due`; a timer that is in this wheel already is moved.

        With a tick that has passed, it is due at the next `advance`. ValueError: the timer is in another wheel.
        """

    def discard(self, timer: Timer) -> bool:
        """Takes `timer` out. False: it was not in this wheel."""

    def advance(self, now: int) -> dict[int, list[Timer]]:
        """Makes `now` the present tick, and takes out the timers that are due by then, as lists by group.

        Each list is in the order of the ticks, and within one tick in the order of adding. Does nothing if `now` is
        before the present tick.
        """

    def next_due(self) -> int | None:
        """A tick before which no timer is due; it may be earlier than the earliest timer. None: the wheel is empty."""

class HoldFields(Timer):
    """The fields of `pyredisson.logic.holds.Hold`, where their meaning is documented."""

    key: tuple[Hashable, int]
    commands: Any
    owner: bytes
    count: int
    leases: int | list[int | None] | None
    token: int
    valid_until: float
    state: Any
    reason: str
    listeners: list[Any] | None
    lost_below: Any
    acquired_by: Any
    begun: float
    listed: bool

    def __init__(
        self,
        key: tuple[Hashable, int],
        commands: object,
        owner: bytes,
        lease: int | None,
        valid_until: float,
        state: object,
    ) -> None: ...
    def change_state(self, old: object, new: object) -> bool:
        """Goes from state `old` to `new`; False: it is in another state, and stays there."""

    def add_level(self, call: AcquireCall, valid_until: float, held: object) -> bool:
        """Counts one more level, acquired by `call`. False: the hold isn't in the state `held` any more."""

    def drop_level(self, call: ReleaseCall, held: object, releasing: object) -> int:
        """Takes the level of `call` off, once; returns how many remain.

        -1: the level of this call was dropped before, or the hold has no level. With the last level a hold in the state
        `held` goes to `releasing`.
        """

class OwnerCall:
    """A call of one owner, which takes its turn among the owner's calls; see `CallQueues`."""

@final
class ReleaseCall(OwnerCall):
    """The release of one level of a hold: the counterpart of `AcquireCall`.

    The level is released once, whichever of several functions with the same `ReleaseCall` comes first. `dropped`: the
    hold doesn't count the level any more. `reported`: nothing is to be sent for the level any more. The server has
    replied to its release, or a command in the background is on its way, or the hold had no level. `successor`: the
    waiter to which this release hands the lock on, until the outcome is known. `hands_over`: the call that does so goes
    on, and will see the outcome.
    """

    dropped: bool
    reported: bool
    hands_over: bool
    successor: Any

    def __init__(self) -> None: ...

class AcquireCall(OwnerCall):
    """One acquire: for which owner, for how long, until when, and its result. It may need several attempts.

    `hold`: what this call acquired, or added a level to. `token`: the fencing token. `events`: the events of the
    lock's channel when the first attempt was made; None: its messages did not arrive then. `began`: when a call
    was sent, or began to wait, that was refused or sent again; 0: it has had no reason to wait. `member`: the name
    under which an attempt may have entered the client in the list of the waiting ones. `place`: how many stand before
    it there, as the latest refusal said; -1: it isn't there. `foreign`: then the holder was no client of this library.

    The rest belongs to the present attempt. `target`: the hold that is to get one more level; None: a new hold.
    `name`: the owner's name in the command. `lease_ms`: the lease in it. `sent_at`: when it was sent. `in_doubt`: it
    may have run, or may run late. `overtaken`: a release by this owner was handed to the background, and may run after
    the command.
    """

    owner: Any
    lease: int | None
    deadline: float | None
    hold: Any
    token: int
    events: int | None
    began: float
    member: bytes
    place: int
    foreign: bool
    target: Any
    name: bytes
    lease_ms: int
    sent_at: float
    in_doubt: bool
    overtaken: bool

    def __init__(self, owner: object, lease: int | None, deadline: float | None) -> None: ...

@final
class InOrder(Generic[_T]):
    """The keys of a dict that others may change meanwhile: the first one, and then the keys of a copy.

    Mostly the first key is enough, and a copy of a long queue takes time. Another key may be the first one by then.
    """

    def __init__(self, keys: dict[_T, Any]) -> None: ...
    def __iter__(self) -> Iterator[_T]: ...
    def __next__(self) -> _T: ...

class RenewalStep:
    """The step of the renewal grid that goes on: holds that begin in it are due at the same time.

    `pyredisson.logic.watchdog.Watchdog` computes it. `_step_begins`, `_step_ends`: readings of the clock.
    `_first_due`: the tick at which those holds are due for the first time. `_next_look`: the tick at which the watchdog
    looks at the wheel next.
    """

    wheel: Wheel
    _step_begins: float
    _step_ends: float
    _first_due: int
    _next_look: float

    def watch(self, hold: HoldFields, now: float) -> None:
        """Watches a new hold, from its announcement to the end of its lease. `now`: when the acquire was sent."""

class HoldTableFields:
    """The fields of `pyredisson.logic.holds.HoldTable`, and what is done with them by each acquire and each release.

    `hold_type`: the class of a hold. `held`, `releasing`, `released`: its states.
    """

    table: dict[Any, Any]
    wheel: Wheel
    _clock: Callable[[], float]

    def __init__(
        self, clock: Callable[[], float], hold_type: type[HoldFields], held: object, releasing: object, released: object
    ) -> None: ...
    def begin_attempt(self, call: AcquireCall, key: tuple[Hashable, int], renewed_lease_ms: int) -> Any:
        """The attempt of an acquire begins: chooses its target, and notes when it was sent.

        Returns a hold of the same owner that can't be relied on any more, which is not the target. None: there is none.
        """

    def begin_hold(
        self, call: AcquireCall, key: tuple[Hashable, int], commands: object, valid_until: float, step: RenewalStep
    ) -> bool:
        """Records a new hold, which `call` acquired, and has it watched.

        No interrupt strikes between the entry in the table and the note on the call, by which an interrupted acquire is
        released.

        False: it is another case, and nothing was changed. The owner has a hold, or the call was overtaken.
        """

    def begin_level_release(self, hold: HoldFields) -> int:
        """The release of one level is about to be sent. Returns how many levels are to remain. -1: it is not held."""

    def drop_level(self, hold: HoldFields, call: ReleaseCall) -> int:
        """Takes the level of `call` off the hold, once; returns how many remain. -1: it was dropped before.

        With the last level the hold leaves the table: it is released, unless it was lost. That part is done again by
        each further call, because an interrupt may have prevented it.
        """

def replace_hold(table: dict[Any, Any], hold: HoldFields, call: AcquireCall) -> None:
    """Puts into the table what `call` acquired."""

def remove_hold(table: dict[Any, Any], hold: HoldFields) -> bool:
    """Takes a hold out of the table, where a lost hold below it stays. False: the hold isn't there."""

@final
class CallQueues:
    """A first-in, first-out queue of calls for each lock. The call at its head has the turn.

    A call waits with a wakeup, which is set when its turn comes. Each method is a single step: neither a signal
    handler nor another thread runs in the middle of it.
    """

    def __init__(self) -> None: ...
    def enter(self, key: Hashable, call: OwnerCall) -> bool:
        """Whether this call has the turn; it gets the turn at once if no other call has it."""

    def is_on_this_thread(self, key: Hashable) -> bool:
        """Whether the call that has the turn was last seen on the calling thread."""

    def current_call(self, key: Hashable) -> OwnerCall | None:
        """The call that has the turn."""

    def wait(self, key: Hashable, call: OwnerCall, wakeup: Any) -> bool:
        """Has the wakeup set when this call gets the turn. True: it has the turn already."""

    def leave(self, key: Hashable, call: OwnerCall) -> None:
        """The call has ended or was given up, with or without the turn: the next one gets it. Idempotent."""

class TaskWakeup:
    """The part of `pyredisson._backends.aio.wakeup.AioWakeup` that is used without sleeping.

    `_sleeps`: the sleeps of the running event loop, which many waits share; None: this wait has a timer of its own.
    `_loop`: the event loop of the task that waits; None: it is not known. `_future`: what the task awaits; None: it
    doesn't sleep. `ends_at`: when the time of the present wait is over; infinite: it has no end, or there is no wait.
    """

    ends_at: float
    _sleeps: Any
    _loop: AbstractEventLoop | None
    _future: TaskFuture | None

    def __init__(self, sleeps: object = None) -> None: ...
    @property
    def alive(self) -> bool: ...
    def set(self) -> None: ...
    def clear(self) -> None: ...
    def is_set(self) -> bool: ...
    def on_end(self) -> None:
        """The time of the present wait is over."""

class SleepsFields:
    """The fields of `pyredisson._backends.aio.sleeps.Sleeps`, where their meaning is documented."""

    loop: AbstractEventLoop
    thread: int
    _heap: list[tuple[float, int, TaskWakeup]]
    _limit: int
    _rings_at: float

    @property
    def run_here(self) -> bool:
        """Whether `loop` is the running loop; False is not certain.

        `get_running_loop` asks the operating system for the process, before Python 3.13. After a fork every client is a
        new client, without the loops of its parent.
        """

    def begin(self, sleep: TaskWakeup, seconds: float) -> None:
        """Has `on_end` called after so many seconds, not earlier, unless `ends_at` is changed before."""

class ChannelFields:
    """The fields of `pyredisson.logic.channels.Channel`, where their meaning is documented, and some of its steps."""

    waiters: Any
    confirmed: bool
    events: int
    error: Any
    idle_since: float
    leader: Any

    def set_aside(self, wakeup: object) -> int:
        """Messages go to other waiters. Returns the need of a waiter that one has woken already; else 0.

        The caller has the mutex.
        """

    def take_back(self, wakeup: object, need: int) -> None:
        """Undoes `set_aside`, unless the waiter has left. The caller has the mutex."""

class WaiterFields:
    """The fields and the state of a call that waits, see `pyredisson.logic.waiting.HandedWaiter`.

    `deadline`: until when it waits; None: without limit. `wakeup`: what it sleeps on. `releaser`: the release that
    offers it what it waits for; None as soon as that has had an outcome. `error`: what the waiter has to raise, because
    what the server had entered was undone for a reason that concerns it alone.
    """

    state: Any
    deadline: float | None
    wakeup: Any
    error: Exception | None
    releaser: ReleaseCall | None

    def change_state(self, old: object, new: object) -> bool:
        """Goes from state `old` to `new`; False: it is in another state, and stays there."""

    def leave(self, given: object, left: object) -> None:
        """Goes to `left` from any state but `given`."""

    def offer(self, waiting: object, offered: object, releaser: ReleaseCall) -> bool:
        """Goes from `waiting` to `offered`, and becomes the successor of `releaser`. False: it is in another state."""

    def conclude(self, offered: object, outcome: object) -> bool:
        """Goes from `offered` to `outcome`, which ends the offer. False: it is in another state, and stays there."""

class LockWaiterFields(WaiterFields):
    """The fields of `pyredisson.logic.locks.queued_wait.LockWaiter`, where their meaning is documented, and some of its
    steps.
    """

    lock: Any
    call: Any
    hold_key: Any
    channel_name: bytes
    queue: Any
    channel: Any
    look_at: float
    owes_attempt: bool

    def begin(
        self,
        state: object,
        lock: object,
        hold_key: tuple[Hashable, int],
        call: AcquireCall,
        wakeup: object,
        channel_name: bytes,
    ) -> None:
        """Sets the fields."""

    def is_ready(self, waiting: object, now: float, holds: dict[Any, Any], lost: object) -> bool:
        """Whether it sleeps, has time, and needs a new hold. `waiting`: its state then. `lost`: a lost hold's."""

    def prepare(self, events: int | None, renewed_lease_ms: int, now: float) -> None:
        """Prepares the call for the command of a release that enters it, as its own attempt would do."""

    def seconds_to_sleep(self, now: float, unconfirmed_wait: float) -> float:
        """For how long to sleep at most. 0 or less: the deadline has passed.

        `unconfirmed_wait`: the longest sleep while messages may be lost.
        """

class LockQueueFields:
    """The fields of `pyredisson.logic.locks.queued_wait.LocalQueue`, where their meaning is documented, and some of its
    steps.

    `held`, `lost`: states of a hold. `waiting`, `offered`: states of a waiter. `unknown_wait`: how many seconds a call
    waits at most if it doesn't know when the lease of the holder ends.
    """

    waiters: Any
    channel: Any
    holder: Any
    holder_events: int | None
    busy_until: float
    series_ends: float | None
    others_first_until: float

    def __init__(self, held: object, lost: object, waiting: object, offered: object, unknown_wait: float) -> None: ...
    @property
    def is_held(self) -> bool:
        """Whether a caller of this client holds the lock, as far as known. Its release looks into this queue.

        False after any message: another client may have removed the lock by force.
        """

    def next_look(self, now: float, held: bool) -> float:
        """When the holder's lease ends, as far as known; for a waiter that has made no attempt."""

    def join_quietly(self, waiter: LockWaiterFields, need: int, waiting: set[Any], now: float, longest: float) -> bool:
        """Has a call that has made no attempt wait behind others, in the channel that they listen to.

        The others have made sure that the connection is being read. The waiter sleeps until it gets the lock or a
        message, or the holder's lease ends, for `longest` seconds at most. False: nothing was changed.
        """

    def offer_to_first(
        self, releaser: ReleaseCall, commands_type: type, now: float, limit: float, holds: dict[Any, Any]
    ) -> Any:
        """Has a release begin to hand the lock on to the first waiter.

        `commands_type`: the class of the commands of the lock. `limit`: for how many seconds the lock is handed on,
        from the first time on. None: another waiter has to be looked for, or there is none, or the time is over;
        nothing was changed.
        """

    def leave_quietly(self, waiter: LockWaiterFields, waiting: set[Any]) -> bool:
        """Removes a waiter that has the lock, also from its channel, if others stay.

        False: nothing was changed. Also if it has a wakeup that goes to another waiter, or is the channel's leader.
        """

class TaskOwners:
    """The fields of `pyredisson._backends.aio.callers.Callers`.

    `owners`: the owner of each task. `_thread`, `_loop`: of the latest task that was new here; 0: there was none.
    """

    owners: dict[Any, Any]
    _thread: int
    _loop: AbstractEventLoop | None

    def current(self) -> Any:
        """The calling task's owner. RuntimeError: no task is running."""

class Run(Generic[_T]):
    """One call of a coroutine function. Reading `result` makes the call, and runs the coroutine to its end.

    It is an attribute, because Python runs signal handlers after every call of a function, but not after reading an
    attribute. So no interrupt can strike between the coroutine's last step and the reader's next step, where a lock
    would be acquired and its owner wouldn't know.
    """

    def __init__(
        self, operation: Callable[_P, Coroutine[Any, Any, _T]], *args: _P.args, **kwargs: _P.kwargs
    ) -> None: ...
    @property
    def result(self) -> _T:
        """The coroutine's result, or its exception. RuntimeError: it suspended."""

class WakeupFields:
    """The part of `pyredisson._backends.threads.wakeup.ThreadWakeup` that is used without sleeping.

    `lock` is unlocked while the wakeup is set. `self_pipe`: a socket to which a byte is sent when the wakeup is set.
    """

    lock: LockType
    self_pipe: socket | None

    def __init__(self) -> None: ...
    def set(self) -> None: ...
    def clear(self) -> None: ...
    def is_set(self) -> bool: ...

class Unsent(Exception):
    """The socket failed before a command was sent completely, so no server executes it. Its argument is the OSError."""

    args: tuple[OSError]

class IdleCheck:
    """Finds out whether the server has closed a socket since it was last used."""

    def __init__(self, descriptor: int) -> None: ...
    def closed(self) -> bool:
        """Whether the server has closed the socket; False without a system call if it was open less than 5 ms ago."""

    def detach(self) -> None:
        """Stops using the file descriptor, whose number another file may soon have."""

@final
class Exchange(IdleCheck):
    """Round trips over one blocking socket, whose kernel timeouts for sending and receiving are short.

    After each of those timeouts, and after a signal, it runs the signals' handlers: a signal that came between sending
    and receiving has interrupted neither. The clock is read only then. BlockingIOError: the time is over. OSError, and
    any exception of a signal's handler: it is unknown how much was sent. `Unsent`: not all was sent.
    """

    def __init__(self, descriptor: int, buffer: bytearray, timeout: float) -> None:
        """`timeout` is the one of `call`, in seconds."""

    def call(self, payload: bytes) -> int:
        """Sends one command, and receives the part of the reply that comes first; returns how many bytes.

        0: the server closed the connection after the command was sent. `Unsent` also if the server had closed it
        before, or had sent data that belongs to no command; that is not checked within 5 ms of the last use.
        """

    def send(self, payload: bytes, seconds: float) -> None:
        """Sends several commands within that time. `Unsent`: nothing was sent."""

    def receive(self, seconds: float) -> int:
        """Receives at least one byte within that time; returns how many. 0: the server has closed the connection."""

    def receive_or_stop(self, other: int, seconds: float) -> int:
        """Receives what comes within that time; returns how many bytes. 0: the server has closed the connection.

        -1: the time is over. -2: the other file descriptor has something to receive. `detach` may be called on another
        thread meanwhile, before the socket is closed.
        """

@final
class TaskFuture:
    """A future that one task awaits, with what a task uses of a future.

    A future of asyncio has its tasks go on in the next iteration of the event loop. This one has its task go on in the
    present iteration, if it is done by the callback that reads replies.
    """

    def __init__(self, loop: AbstractEventLoop) -> None: ...
    def __await__(self) -> Generator[Any, None, Any]: ...
    def get_loop(self) -> AbstractEventLoop: ...
    def done(self) -> bool: ...
    def result(self) -> Any: ...
    def add_done_callback(self, callback: Callable[[TaskFuture], object], *, context: Context) -> None:
        """Called by the task that awaits this."""

    def cancel(self, msg: object = None) -> bool:
        """Called when the task is cancelled. False: the future is done."""

    def set_result(self, value: Any) -> None: ...
    def set_exception(self, error: BaseException) -> None: ...

@final
class AppliedReply:
    """The reply to a command: it is applied, and then the future gets it.

    So a task that `apply` wakes goes on before the task that has sent the command.
    """

    def __init__(self, future: TaskFuture, apply: Callable[[Any], object]) -> None: ...
    def done(self) -> bool:
        """Whether the future is done. A reply to a caller that was cancelled isn't applied: the caller undoes it."""

    def set_result(self, reply: Any) -> None: ...
    def set_exception(self, error: Exception) -> None:
        """There is no reply to apply."""

class PipelineFields:
    """The fields of `pyredisson._backends.aio.connection.Pipeline`, where their meaning is documented."""

    loop: AbstractEventLoop
    thread: int
    state: Any
    on_reply: Callable[[Any], None] | None
    _transport: Transport | None
    _idle_check: IdleCheck
    _replies: deque[Future[Any] | TaskFuture | AppliedReply]
    _unsent: list[bytes]
    _send_at_once: bool
    _timer: TimerHandle | None
    _buffer: bytearray
    _feed: Callable[[bytearray, int, int], None]
    _next_reply: Callable[[], Any]

    def submit(self, payload: bytes) -> Future[Any]:
        """Sends a command, at once if commands come one by one, else with others of this loop iteration.

        Returns a future of the reply.
        """

    def send(self, payload: bytes, apply: Callable[[Any], object] | None = None) -> TaskFuture:
        """As `submit`, but the future is for one task that awaits it.

        `apply` is called with the reply before any task goes on.
        """

    def hand_out_replies(self, size: int) -> None:
        """Parses so many bytes of the buffer, and gives each reply to the future of its command, or to `on_reply`.

        Then the tasks go on that wait for the replies, and the tasks that were woken by `apply`.
        """

class PipelineSender:
    """Sends over the pipeline in use. A subclass makes the next one, in `_connect_and_send`."""

    pipeline: Any

    def __init__(self, open_state: object) -> None:
        """`open_state`: the state of a pipeline that takes commands."""

    def send(self, payload: bytes, *, new_connection: bool = False) -> Awaitable[Any]:
        """Sends one command and returns its reply, as an awaitable.

        `new_connection` changes nothing here. A pipeline that has failed, or has met a server that isn't the master,
        isn't used again, and the handshake of the next one has the server drop it.
        """

    def send_then(self, payload: bytes, apply: Callable[[Any], object]) -> Awaitable[Any]:
        """As `send`, and calls `apply` with the reply before any task goes on, see `Sender`."""
