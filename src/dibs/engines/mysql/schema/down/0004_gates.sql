drop table if exists dibs_gates;

alter table dibs_finished
    drop key dibs_finished_lasting,
    drop key dibs_finished_slot_token,
    drop column key_is_free,
    drop column unique_until,
    drop column slot_limit,
    drop column slot_policy,
    drop column position;

alter table dibs_jobs
    drop key dibs_jobs_gate,
    drop column place,
    drop column gate,
    drop column unique_until,
    drop column slot_limit,
    drop column slot_policy,
    drop column position;
