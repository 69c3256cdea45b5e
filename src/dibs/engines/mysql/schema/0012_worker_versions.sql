-- Which dibs a worker runs: for people, who want to see how far an upgrade is. Workers of the version before say none.
set @change = (
    select if(count(*) > 0, 'do 0', 'alter table dibs_workers add column version varchar(50)')
    from information_schema.columns known
    where known.table_schema = database() and known.table_name = 'dibs_workers' and known.column_name = 'version'
);
prepare change_workers from @change;
execute change_workers;
deallocate prepare change_workers;
