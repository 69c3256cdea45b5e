"""What a job is, and what becomes of it: values and decisions, no I/O."""

from dibs.jobs.job import Job, JobError, NewJob
from dibs.jobs.states import JobState, Retry

__all__ = ["Job", "JobError", "JobState", "NewJob", "Retry"]
