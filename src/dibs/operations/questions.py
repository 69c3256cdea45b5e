"""The questions an engine answers, what each promises, and what an engine may say it can't.

An engine is a set of answers to these questions; `memory` is the executable specification. A
question that changes something is one atomic step: one SQL transaction, one script, one lock.
Parameters are plain values (ids, numbers, text, lists of tuples); times go in as delays in
microseconds that the store adds to its own clock. Answers are rows.

| question              | asks                                            | promises                      |
|-----------------------|-------------------------------------------------|-------------------------------|
| `enqueue`             | store these jobs                                | all or none; by id, stored    |
|                       |                                                 | once; a unique key once       |
| `claim`               | lease up to n ready jobs of these lines         | no job to two; never over n;  |
|                       |                                                 | priority, run_at, id          |
| `claim_within_limits` | the same where queues have a limit              | never more running than that  |
| `claim_job`           | lease exactly this one                          | only from ready               |
| `settle`              | apply these settlements, add their children     | fenced by token; children     |
|                       |                                                 | only with success             |
| `exchange`            | settle, and claim                               | both, in one commit           |
| `renew`               | push the leases of these claims                 | only the holder; one locked   |
|                       |                                                 | row does not stall the rest   |
| `progress`            | note how far a claim got                        | only the holder               |
| `stage`               | make due jobs ready, pass on turns that nobody  | bounded                       |
|                       | took                                            |                               |
| `sweep`               | give back or end jobs whose lease ran out       | attempts kept; bounded        |
| `cancel`              | end waiting jobs, flag running ones             | a finished one is untouched   |
| `retry`               | put failed or cancelled jobs back, due ones now | unique keys stay unique       |
| `recover`             | take a stale running job from its holder, with  | only this claim's, and only   |
|                       | these errors                                    | past the stale time           |
| `delete`, `prune`     | remove jobs                                     | never a running one; bounded  |
| `tick`, `leave`       | a worker is here, is gone                       | hears what is due next        |
| `enqueue_tick`        | move a schedule's last tick from where it was   | only the first who asks;      |
|                       | seen (None: nowhere yet), enqueue these jobs    | both or neither               |
| `set_queue`           | pause, resume or limit a queue                  |                               |
| `release_train`       | let the next of a held train go                 | whether it was held           |
| `mend`                | look at pipelines and gates from this one on,   | bounded; where all is well    |
|                       | heal what does not fit the jobs                 | nothing changes               |
| `enqueue_pipeline`    | store these jobs, some of which wait for others | all or none; by the           |
|                       | of them                                         | pipeline's id, stored once    |
| `parents`             | whom do these jobs wait for                     |                               |
| `pipelines`           | what these pipelines are called; without ids:   |                               |
|                       | which of them are not done                      |                               |
| `gates`, `current`    | who is at a train or slot; who started last     | finished jobs included        |
| `get`, `find`,        | look                                            | finished jobs included        |
| `find_oldest`,        |                                                 |                               |
| `counts`, `queues`,   |                                                 |                               |
| `workers`, `upcoming` |                                                 |                               |
| `settled`, `explain`, |                                                 |                               |
| `glance`,             |                                                 |                               |
| `glance_at_queue`,    |                                                 |                               |
| `schedules`, `now`,   |                                                 |                               |
| `ready_lines`,        |                                                 |                               |
| `backlog`             |                                                 |                               |
| `identify`            | which store are you?                            | one id, kept for good         |
| `depart`              | take jobs out that don't run, for another store | nobody can claim them; kept   |
|                       |                                                 | until they `landed`; bounded  |
| `arrive`              | store jobs that departed elsewhere              | by id, once, also when they   |
|                       |                                                 | were done and pruned since    |
| `give_back`           | let jobs that departed be jobs again            | both or neither               |
| `landed`, `departed`  | forget what was noted of a move; what departed  |                               |
| `examine`             | what are you, and how are you set?              | facts, never an opinion       |
| `echo`                | say this to all who listen                      |                               |
| `age`                 | move stored times back; only tests ask this     |                               |

`enqueue` answers one row per job, in order: `is_new` with the job's `state`, `run_at`, `enqueued_at`, or
else the id of the job that is its `holder`. `enqueue_tick` answers nothing when the schedule is not where it
was seen; else one row, and then those of `enqueue` for its jobs, whose ids are always fresh.

`claim`, `claim_job`, `claim_within_limits` and `exchange` answer at least one row. The first one
also says `limited` (nothing was taken because a queue in question has a limit: ask
`claim_within_limits`), `overdue` (there are due or expired jobs that nobody moved yet; looked for
only when asked), `crowded` (others were claiming all that this claim looked at: ask again) and, for
`exchange`, `settled` (the ids that were settled). A row whose `id` is
None holds no job. Whether an exchange may claim what it just gave back is left to the engine.

`cancel` answers a row for each job it changed: its `id`, and the `worker` of one that was running. That
worker is sent a hint (`STOP_HINT`), so that it need not wait for its next heartbeat to hear of it.

Trains and slots change what the other questions do, not what they are asked (ADR 12): a job that has one
becomes `ready` only when its gate lets it through, and whatever ends a job or puts it back lets the next one
through in the same step. `gates` answers a row per train or slot, by name: `name`, `head` (an id), `length`
and `held`; `current` per slot the `id` and `token` of the job that started last, if any; `release_train` one
row, `was_held`, or none when nobody is on that train; `mend` the `sort` and `name` of each gate it looked at.
Before the gates come what jobs wait for others, of the sort `pipeline`, and after them who has a place at
one, of the sort `job`, for its gate may be gone; by whatever names the engine goes by.

Somebody's open transaction may have a gate locked (`Traits.locks_gates`). Then `settle` and `exchange` may be
told their `patience`: "none", and a settlement whose gate is locked is not applied, but named, by a row with
`waits` or in `waiting` of the first row; or "short", and the question fails after about a second. With
it come the unique `keys` of these jobs, by id: somebody may have those locked, too. Left out, they wait.

A busy worker may say where its last claims ended (ADR 21): `exchange` is told by `marks` (a `Cursor` each;
left out when there are none, and for engines that don't go on) the last job that was claimed in some lines.
Then it looks only there, behind them. Whoever got fewer jobs than wanted asks again without.

Pipelines whose jobs wait for each other change what the other questions do, too (ADR 18): with the success
of the last of its parents a job becomes what it would be had it been enqueued then, in the same step; when
one ends otherwise, those after it are cancelled, or wait on, as the pipeline says. `settle` and `exchange`
are told by `steps`, (id, pipeline) of each settlement that may concern such a pipeline; it is left out when
there are none. `enqueue_pipeline` is told the `pipeline` (id, name, on_failed), the `edges` (parent, child)
and the jobs; it answers as `enqueue` does, or nothing when it knows the pipeline. `parents` answers `child`,
`parent` and `met` (it has succeeded), in the order given; `pipelines` the `id`, `name` and `on_failed`.

`find` answers whole jobs, newest first, older than the id `after`, if there is one. `find_oldest` answers
only ids, oldest first, of jobs newer than `after`: who is put back takes its place in that order.

`ready_lines` answers the (queue, kind) pairs that have ready jobs in queues that are not paused; it must cost
little however many jobs there are. `backlog` answers per queue how many jobs are ready (`jobs`) and `since`
when the oldest of them is; it may count.

`glance` answers of these jobs the little that changes (`GLANCED_COLUMNS`) and that tells a watcher whether to
`get` one; it is asked several times a second, so it reads no arguments and no results. `glance_at_queue`
answers the same of the newest live jobs of a queue, or of all, and of the finished ones whose id is greater
than `since`.

A job on its way from one store to another (`dibs.moving`) is a text, `StoredJob` in JSON. `depart` takes jobs
in the order of their ids, `after` one of them, and answers `id` and `job`; `departed` the same with the
`store` they are meant for. `arrive` and `give_back` answer one row per job, as `enqueue` does: `is_new`, or
the `holder` of its id or of its unique key; `arrive` notes what it stored until it `landed`, so that a
repetition is known. Without `ids`, all that came `in` from a store have landed.
`identify` answers the `id` of the store; one that has none yet takes the `new` one, if one is given.

`examine` answers rows of `fact`, `about` and `value`, all text: of which name, of what, how much. `doctor`
lists the facts it knows and judges them; an engine answers those that it has.
"""

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

# A hint that wakes workers is a queue's name, or empty: look everywhere; a kind may follow, if there is but
# one. These marks and a worker's name say that this worker has ticked, or that somebody asked one of its jobs
# to stop; without a name, any worker's may have been. (No name can hold a control character.)
ECHO_HINT, STOP_HINT = "\x01", "\x02"
_KIND_FOLLOWS = "\x1f"

QUESTIONS = frozenset(
    {
        *("enqueue", "claim", "claim_within_limits", "claim_job", "settle", "exchange", "renew"),
        *("progress", "stage", "sweep", "cancel", "retry", "recover", "delete", "prune"),
        *("tick", "leave", "workers", "upcoming", "enqueue_tick", "schedules"),
        *("set_queue", "get", "find", "find_oldest", "counts", "queues", "settled", "explain", "now", "age"),
        *("ready_lines", "backlog", "examine", "echo", "glance", "glance_at_queue"),
        *("enqueue_pipeline", "parents", "pipelines"),
        *("identify", "depart", "departed", "arrive", "give_back", "landed"),
    }
)

# What is asked of trains and slots themselves.
GATE_QUESTIONS = frozenset({"release_train", "mend", "gates", "current"})

GLANCED_COLUMNS = ("id", "state", "attempts", "token", "progress", "message", "run_at")

SETTLEMENT_COLUMNS = (
    *("id", "token", "state", "settled_as", "delay", "refund", "result", "errors", "message"),
    *("pipeline_id", "train", "slot"),
)


class Cursor(NamedTuple):
    """The last job that was claimed in a line."""

    queue: str
    kind: str
    priority: int
    run_at: datetime
    id: UUID


def hint_of(queue: str, kinds: Collection[str]) -> str:
    """There is something in this queue, of these kinds."""
    return _KIND_FOLLOWS.join([queue, *kinds]) if len(kinds) == 1 else queue


def split_hint(hint: str) -> tuple[str, str | None]:
    """The queue, and the kind if the hint tells it."""
    queue, _, kind = hint.partition(_KIND_FOLLOWS)
    return queue, kind or None


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What an engine can promise. Tests and docs ask these, never an engine's name."""

    durable: bool
    """What was acknowledged survives the end of this process."""
    shared: bool
    """Several processes may work on it."""
    joins_caller: bool
    """`within=` works: jobs live and die with the caller's transaction."""
    migrates_itself: bool
    """No `dibs migrate` needed before the first use."""
    wakes: bool
    """`Store.listen` hears of new jobs, so that an idle worker need not look for them."""
    echoes: bool = False
    """A worker's tick comes back to its own listener; one that stays out means that nothing is heard."""
    joins_pipeline: bool = False
    """`within=` takes a Redis pipeline: done with the caller's EXEC, and nothing is answered before."""
    may_rewind: bool = False
    """When a replica takes over, what was acknowledged last may be gone, and tokens be given out again."""
    locks_gates: bool = False
    """A caller's transaction keeps the gates of its jobs locked: settling may be told its `patience`."""
    atomic_up_to: int | None = None
    """How many jobs one enqueue stores all or none; None for any number."""
    goes_on: bool = False
    """`exchange` takes `marks`: it pays to say where the last claims ended."""
