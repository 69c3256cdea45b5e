-- What a schedule is (its rule, time zone and job) beside how far it got, as JSON text, and a number that is another
-- one after each change of it. Workers of the version before know neither: they move `last_tick` as they always did.
set @change = (
    select if(
        count(*) > 0,
        'do 0',
        "alter table dibs_schedules
            add column about longtext,
            add column revision bigint not null default 0"
    )
    from information_schema.columns known
    where known.table_schema = database()
      and known.table_name = 'dibs_schedules'
      and known.column_name = 'revision'
);
prepare change_schedules from @change;
execute change_schedules;
deallocate prepare change_schedules;
