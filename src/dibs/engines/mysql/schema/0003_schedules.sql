-- How far each schedule of `@app.every` got. Whoever moves a row enqueues the job of that tick with it.
create table if not exists dibs_schedules (
    name      varchar(200) not null primary key,
    last_tick datetime(6) not null
) engine = innodb row_format = dynamic character set utf8mb4
  collate /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */;
