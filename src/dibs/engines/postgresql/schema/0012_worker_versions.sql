-- Which dibs each worker runs, for people; workers of the version before say none.
alter table dibs_workers add column version text;
