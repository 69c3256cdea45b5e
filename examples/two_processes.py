"""Two processes share a hundred jobs: `python two_processes.py` (or with $DIBS_URL set to a PostgreSQL)."""

import multiprocessing

from dibs import Dibs, NewJob


def work(name: str) -> None:
    app = Dibs().sync
    done = 0
    while claims := app.claim(kinds=["square"], limit=5, worker=name):
        for claim in claims:
            claim.succeed(claim.job.args["n"] ** 2)
            done += 1
    print(f"{name} did {done}")


def main() -> None:
    app = Dibs().sync
    app.migrate()
    with app:
        app.enqueue(*[NewJob("square", args={"n": n}) for n in range(100)])
        workers = [multiprocessing.Process(target=work, args=[name]) for name in ("one", "two")]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        print(app.counts()["succeeded"], "succeeded")


if __name__ == "__main__":
    main()
