"""The worker: claims jobs, runs their handlers, settles them, all day long."""

from dibs.worker.worker import Worker

__all__ = ["Worker"]
