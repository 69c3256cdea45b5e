-- Writes of claims that no longer held their job, and were refused: for people, kept with the job, the newest twenty.
create table if not exists dibs_refusals (
    job        binary(16) not null,
    token      bigint not null,
    tried      varchar(50) not null,
    worker     varchar(200),
    refused_at datetime(6) not null,
    primary key (job, token, tried)
) engine = innodb row_format = dynamic character set utf8mb4
  collate /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */;
