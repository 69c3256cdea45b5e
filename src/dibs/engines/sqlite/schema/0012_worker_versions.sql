-- Which dibs a worker runs: for people, who want to see how far an upgrade is. Workers of the version before say none.
alter table dibs_workers add column version text;
