alter table dibs_schedules
    drop column revision,
    drop column about;
