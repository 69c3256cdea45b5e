"""The questions that an engine has answers to, what each promises, and what an engine may say it can't do.

An engine is a set of answers to these questions; `memory` is the executable specification. A question that
changes something is one atomic step: one SQL transaction, one script, one lock. Parameters are plain values
(ids, numbers, text, lists of tuples); times go in as delays in microseconds that the store adds to its own
clock. Each returns rows.

| question              | asks                                            | promises                      |
|-----------------------|-------------------------------------------------|-------------------------------|
| `enqueue`             | store these jobs                                | all or none; by id, stored    |
|                       |                                                 | once; a unique key once       |
| `claim`               | lease up to n ready jobs of these queues, kinds | no job to two; never over n;  |
|                       |                                                 | priority, run_at, id          |
| `claim_within_limits` | the same where queues have a limit              | never more running than that  |
| `claim_job`           | lease exactly this one                          | from ready, or blocked by a   |
|                       |                                                 | slot with room                |
| `settle`              | apply these settlements, add their children     | fenced by token; children     |
|                       |                                                 | only with success             |
| `exchange`            | settle, and claim                               | both, in one commit           |
| `renew`               | extend the leases of these claims               | only the holder; one locked   |
|                       |                                                 | row does not stall the rest   |
| `progress`            | record how far a claim got                      | only the holder               |
| `stage`               | make due jobs ready, end offers of slots that   | bounded                       |
|                       | no worker has claimed                           |                               |
| `sweep`               | take back or end jobs after their lease ran out | attempts kept; bounded        |
| `cancel`              | end waiting jobs, ask running ones to stop      | a finished one is untouched   |
| `update`              | change priority or time of a waiting job        | its position on a train stays |
| `retry`               | put failed or cancelled jobs back, due ones now | unique keys stay unique       |
| `recover`             | take a stale running job from its holder, with  | only this claim's, and only   |
|                       | these errors                                    | past the stale time           |
| `delete`, `prune`     | remove jobs                                     | never a running one; bounded  |
| `tick`, `leave`       | record that a worker lives, or has left         | returns what is due next      |
| `enqueue_tick`        | change a schedule's last tick from the value    | only while the schedule is as |
|                       | read, enqueue these jobs                        | it was read; both or neither  |
| `set_schedule`,       | write a schedule (`since` None: a new one);     | the same                      |
| `delete_schedule`     | remove it                                       |                               |
| `set_queue`           | pause, resume or limit a queue                  |                               |
| `release_train`       | let the next of a held train go                 | whether it was held           |
| `mend`                | read pipelines and gates from this one on,      | bounded; where all is well    |
|                       | repair what does not fit the jobs               | nothing changes               |
| `enqueue_pipeline`    | store these jobs, some of which wait for others | all or none; by the           |
|                       | of them                                         | pipeline's id, stored once    |
| `parents`             | the jobs that these jobs wait for               |                               |
| `pipelines`           | the names of these pipelines; without ids: the  |                               |
|                       | pipelines that are not done                     |                               |
| `newest_pipelines`,   | ids of a page of pipelines that have jobs, in   | finished jobs included        |
| `pipeline_counts`     | the order of ids; their jobs by state           |                               |
| `gates`, `current`    | the jobs at a train or slot; the job of a slot  | finished jobs included        |
|                       | that started last                               |                               |
| `get`, `find`,        | read                                            | finished jobs included        |
| `find_oldest`,        |                                                 |                               |
| `search`, `count`,    |                                                 |                               |
| `counts`, `queues`,   |                                                 |                               |
| `workers`, `upcoming` |                                                 |                               |
| `settled`, `explain`, |                                                 |                               |
| `glance`,             |                                                 |                               |
| `glance_at_queue`,    |                                                 |                               |
| `schedules`, `now`,   |                                                 |                               |
| `ready_lines`,        |                                                 |                               |
| `backlog`, `traffic`  |                                                 |                               |
| `add_to_minute`       | add these counts to the ones of a minute or     | adds to what others added     |
|                       | quarter of an hour, queue and kind              |                               |
| `minutes`,            | the sums of these counts in a time, by queue or | bounded                       |
| `forget_minutes`      | kind or of all; remove the ones before a time   |                               |
| `refuse`, `refusals`, | note a write of a claim that had lost this job, | once; the newest twenty of a  |
| `forget_refusals`     | if the job exists; read what was noted; remove  | job                           |
|                       | what was noted of jobs that are gone            |                               |
| `identify`            | the identity of the store                       | one id, kept for good         |
| `depart`              | take jobs out that don't run, for another store | they can't be claimed; kept   |
|                       |                                                 | until they `landed`; bounded  |
| `arrive`              | store jobs that departed elsewhere              | by id, once, also when they   |
|                       |                                                 | were done and pruned since    |
| `give_back`           | let jobs that departed be jobs again            | both or neither               |
| `landed`, `departed`  | forget what was noted of a move; what departed  |                               |
| `examine`             | facts about the store and its settings          | facts, never an opinion       |
| `echo`                | send this hint to all listeners                 |                               |
| `age`                 | make stored times older; only tests ask this    |                               |

`enqueue` returns one row per job, in order: `is_new` with the job's `state`, `run_at`, `enqueued_at`, or else
the id of the job that is its `holder`.

`schedules` returns `name`, `last_tick`, `revision` and `about`, a text that the engine does not read
(`dibs.operations.schedules`); it is None of a schedule that only a worker of an earlier version has recorded.
`enqueue_tick` and `set_schedule` return nothing unless last tick and revision are the ones read, `since` and
`revision`; else one row, and `enqueue_tick` then the rows of `enqueue` for its jobs, which always have fresh
ids. `new_revision` is a number that the schedule never had before. `tick` and `upcoming` return as
`schedules` a number that differs once any schedule was set or deleted.

`claim`, `claim_job`, `claim_within_limits` and `exchange` return at least one row. The first one also has
`limited` (nothing was claimed because a queue in question has a limit: ask `claim_within_limits`), `overdue`
(there are due or expired jobs that no upkeep has found yet; checked only when asked), `crowded` (all jobs
that this claim met were locked by other claims: ask again) and, for `exchange`, `settled` (the ids that were
settled). A row with None as its `id` has no job. Whether an exchange may claim what it just gave back is left
to the engine.

`cancel` returns a row for each job it changed: its `id`, and the `worker` of one that was running. That
worker is sent a hint (`STOP_HINT`), so that it need not wait for its next heartbeat.

Trains and slots change what the other questions do, not their parameters (ADR 12): a job that has one becomes
`ready` only when its gate lets it go, and whatever ends a job or puts it back lets the next one go in the
same step. `gates` returns a row per train or slot, by name: `name`, `head` (an id), `length`, `held` and of a
slot how many of its jobs are `running`;
`current` per slot the `id` and `token` of the job that started last, if any; `release_train` one row,
`was_held`, or none when no job is on that train; `mend` the `sort` and `name` of each gate it read. Before
the gates come the jobs that wait for others, of the sort `pipeline`, and after them the jobs that have a
position at a gate, of the sort `job`, as the gate itself may be gone; by whatever names the engine goes by.

A caller's open transaction may have a gate locked (`Traits.locks_gates`). Then `settle` and `exchange` take a
`patience`. With "none", a settlement at a locked gate is not applied, but named, by a row with `waits` or in
`waiting` of the first row. With "wary", a settlement whose own row is locked is not
applied either. With "short", the question fails after about a second. With it come the unique
`keys` of these jobs, by id, which may be locked, too. Left out, they wait.

`claim` may come with the ids of jobs that hints have `named`; left out when there are none, as for engines
that send no such hints. If any of them is ready the engine may claim only these.

A worker may say where its last claims ended (ADR 21): `exchange` takes as `marks` (a `Cursor` each; left
out when there are none, and for engines without `Traits.goes_on`) the last job that was claimed in some
queue-kind pairs. Then it claims only there, behind them. A worker that got fewer jobs than it wanted asks
again without.

Pipelines in which jobs wait for each other change what the other questions do, too (ADR 18): with the success
of the last of its parents a job becomes what it would be had it been enqueued then, in the same step; when a
parent ends otherwise, the jobs after it are cancelled, or wait on, as the pipeline says. `settle` and
`exchange` take as `steps` the (id, pipeline) of each settlement that may concern such a pipeline; it is left
out when there are none. `enqueue_pipeline` takes the `pipeline` (id, name, on_failed), the `edges` (parent,
child) and the jobs; it returns what `enqueue` does, or nothing when it knows the pipeline. `parents` returns
`child`, `parent` and `met` (it has succeeded), in the order given; `pipelines` the `id`, `name` and
`on_failed`; `pipeline_counts` per `pipeline_id` and `state` how many `jobs`, and the sum of their `progress`.

`find` returns whole jobs, newest first, older than the id `after`, if there is one. `find_oldest` returns
only ids, oldest first, of jobs newer than `after`: jobs are put back in that order.

`search` takes the filter of `find` and up to three texts in lower case: `in_args`, `in_errors` and `in_text`
(of the kind, the message or the errors). Of the newest `scan` jobs before `after` that match the filter it
returns `id` and place (`nth`) of up to `limit` with texts that hold them (`hit`; others may be among them, as
an operation compares each again), and of the last one. Where an engine has an index of arguments, it may
return instead the newest with arguments that contain one of two JSON texts (`contained`), however old.
`count` returns the number of `jobs` that match, up to about `scan`.

`ready_lines` returns the (queue, kind) pairs that have ready jobs in queues that are not paused; it must cost
little however many jobs there are. `backlog` returns per queue how many jobs are ready (`jobs`) and `since`
when the oldest of them is; it may count. `traffic` returns per queue how many `jobs` have an id greater
than `since` (`what` is `enqueued`), and how many of the kept ones failed (`what` is `failed`); of each it
counts up to about `limit`.

`glance` returns of these jobs the few columns that change (`GLANCED_COLUMNS`), by which a watcher knows
whether to `get` one; it is asked several times a second, so it reads no arguments and no results.
`glance_at_queue` returns the same of the newest live jobs of a queue, or of all, and of the finished ones
with an id greater than `since`.

A job on its way from one store to another (`dibs.moving`) is a text, `StoredJob` in JSON. `depart` takes jobs
in the order of their ids, `after` one of them, and returns `id` and `job`; `departed` the same with the
`store` they are meant for. `arrive` and `give_back` return one row per job, as `enqueue` does: `is_new`, or
the `holder` of its id or of its unique key; `arrive` notes what it stored until it `landed`, so that a
repetition is recognised. Without `ids`, all that came `in` from a store have landed. `identify` returns the
`id` of the store; one that has none yet takes the `new` one, if one is given.

`examine` returns rows of `fact`, `about` and `value`, all text: of which name, of what, how much. `doctor`
lists the facts it knows and judges them; an engine returns the ones that it has.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

# Hints that are not about new jobs (engines/hints.py): a worker has ticked, or one of its jobs was asked to
# stop. The worker's name follows; without a name, any worker's. (No name can have a control character.)
ECHO_HINT, STOP_HINT = "\x01", "\x02"

QUESTIONS = frozenset(
    {
        *("enqueue", "claim", "claim_within_limits", "claim_job", "settle", "exchange", "renew"),
        *("progress", "stage", "sweep", "cancel", "update", "retry", "recover", "delete", "prune"),
        *("tick", "leave", "workers", "upcoming", "enqueue_tick", "schedules"),
        *("set_schedule", "delete_schedule", "search", "count", "add_to_minute", "minutes", "forget_minutes"),
        *("refuse", "refusals", "forget_refusals"),
        *("set_queue", "get", "find", "find_oldest", "counts", "queues", "settled", "explain", "now", "age"),
        *("ready_lines", "backlog", "examine", "echo", "glance", "glance_at_queue", "traffic"),
        *("enqueue_pipeline", "parents", "pipelines", "newest_pipelines", "pipeline_counts"),
        *("identify", "depart", "departed", "arrive", "give_back", "landed"),
    }
)

# The questions about trains and slots themselves.
GATE_QUESTIONS = frozenset({"release_train", "mend", "gates", "current"})

GLANCED_COLUMNS = ("id", "state", "attempts", "token", "progress", "message", "run_at")

SETTLEMENT_COLUMNS = (
    *("id", "token", "state", "settled_as", "delay", "refund", "result", "errors", "message"),
    *("pipeline_id", "train", "slot"),
)


class Cursor(NamedTuple):
    """The last job that was claimed of a queue-kind pair."""

    queue: str
    kind: str
    priority: int
    run_at: datetime
    id: UUID


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What an engine can promise: tests and docs use these, never its name. Example: `app.traits.durable`"""

    durable: bool = True
    """What was acknowledged survives the end of this process."""
    shared: bool = True
    """Several processes may work on it."""
    joins_caller: bool = False
    """`within=` works: jobs live and die with the caller's transaction."""
    migrates_itself: bool = False
    """No `dibs migrate` needed before the first use."""
    wakes: bool = False
    """`Store.listen` receives hints of new jobs, so that an idle worker need not poll for them."""
    echoes: bool = False
    """A worker's tick comes back to its own listener; if it does not, no hint arrives."""
    joins_pipeline: bool = False
    """`within=` takes a Redis pipeline: done with the caller's EXEC, and nothing is returned before."""
    may_rewind: bool = False
    """When a replica takes over, what was acknowledged last may be gone, and tokens be given out again."""
    locks_gates: bool = False
    """A caller's transaction keeps the gates of its jobs locked: settling takes a `patience`."""
    atomic_up_to: int | None = None
    """How many jobs one enqueue stores all or none; None for any number."""
    goes_on: bool = False
    """`exchange` takes cursors as `marks`: it pays to say where the last claims ended."""
