"""A script that cron starts every few minutes: claim what is ready, do it, end.

    python cron_script.py

For machines where nothing may run all day. Two runs may overlap, on one machine or on several: no invoice is
sent by both. A run that is killed loses nothing: the next one does what is left.
"""

import time

from dibs import Dibs, NewJob

app = Dibs().sync  # the sync face

SECONDS_PER_RUN = 240  # cron starts the next one after five minutes
LEASE = 60  # after a crash, another run may claim the job this long after its last renewal


def send_invoice(invoice: int) -> None:
    if invoice == 3:
        raise ValueError(f"invoice {invoice} has no address")
    print(f"sent invoice {invoice}")


def work() -> tuple[int, int]:
    """Claim in small batches until nothing is ready or the time is up; return the successes and failures."""
    sent = failed = 0
    deadline = time.monotonic() + SECONDS_PER_RUN
    while time.monotonic() < deadline and (claims := app.claim(queues=["invoices"], limit=5, lease=LEASE)):
        for claim in claims:
            try:
                # Inside the block the lease is renewed. Leaving it is success, an exception is a failed
                # attempt: recorded, and to be tried again later while there are attempts left.
                with claim as job:
                    send_invoice(job.args["invoice"])
                sent += 1
            except ValueError as error:
                print(f"not sent: {error}")
                failed += 1
    return sent, failed


def enqueue_some() -> None:
    """Stand in for your application. A unique key keeps an invoice from being enqueued twice."""
    for invoice in (1, 2, 3, 3):
        app.enqueue(
            NewJob("invoice", args={"invoice": invoice}, queue="invoices", unique=f"invoice-{invoice}")
        )


def main() -> None:
    app.migrate()
    with app:
        enqueue_some()
        sent, failed = work()
        print(f"{sent} sent, {failed} failed")
        [waiting] = app.find(queue="invoices", state="scheduled")
        print(f"invoice {waiting.args['invoice']} is for a later run: {waiting.errors[0].message}")


if __name__ == "__main__":
    main()
