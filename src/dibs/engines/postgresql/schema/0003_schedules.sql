-- How far each schedule of `@app.every` got. Whoever moves a row enqueues the job of that tick with it.
create table dibs_schedules (
    name      text collate "C" primary key,
    last_tick timestamptz not null
);
