-- What a schedule is (its rule, time zone and job) beside how far it got, as JSON text, and a number that is another
-- one after each change of it. Workers of the version before know neither: they move `last_tick` as they always did.
alter table dibs_schedules
    add column about text,
    add column revision bigint not null default 0;
