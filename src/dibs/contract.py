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
| `stage`               | make due jobs ready                             | bounded                       |
| `sweep`               | give back or end jobs whose lease ran out       | attempts kept; bounded        |
| `cancel`              | end waiting jobs, flag running ones             | a finished one is untouched   |
| `retry`               | put failed or cancelled jobs back, due ones now | unique keys stay unique       |
| `recover`             | take a stale running job from its holder        | only past the stale time      |
| `delete`, `prune`     | remove jobs                                     | never a running one; bounded  |
| `tick`, `leave`       | a worker is here, is gone                       | hears what is due next        |
| `set_queue`           | pause, resume or limit a queue                  |                               |
| `get`, `find`,        | look                                            | finished jobs included        |
| `counts`, `queues`,   |                                                 |                               |
| `workers`, `upcoming` |                                                 |                               |
| `settled`, `explain`, |                                                 |                               |
| `now`                 |                                                 |                               |
| `age`                 | move stored times back; only tests ask this     |                               |

`enqueue` answers one row per job, in order: `is_new` with the job's `state`, `run_at`, `enqueued_at`, or
else the id of the job that is its `holder`.

`claim`, `claim_job`, `claim_within_limits` and `exchange` answer at least one row. The first one
also says `limited` (nothing was taken because a queue in question has a limit: ask
`claim_within_limits`), `overdue` (there are due or expired jobs that nobody moved yet; looked for
only when asked), `crowded` (others were claiming all that this claim looked at: ask again) and, for
`exchange`, `settled` (the ids that were settled). A row whose `id` is
None holds no job. Whether an exchange may claim what it just gave back is left to the engine.
"""

from dataclasses import dataclass

QUESTIONS = frozenset(
    {
        *("enqueue", "claim", "claim_within_limits", "claim_job", "settle", "exchange", "renew"),
        *("progress", "stage", "sweep", "cancel", "retry", "recover", "delete", "prune"),
        *("tick", "leave", "workers", "upcoming"),
        *("set_queue", "get", "find", "counts", "queues", "settled", "explain", "now", "age"),
    }
)

SETTLEMENT_COLUMNS = (
    *("id", "token", "state", "settled_as", "delay", "refund", "result", "errors", "message"),
    "pipeline_id",
)


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
    """New jobs are announced, so that an idle worker need not look for them."""
