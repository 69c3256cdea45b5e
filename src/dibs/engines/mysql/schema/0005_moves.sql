-- Which store this is: how two addresses of one store are told from two stores.
create table if not exists dibs_identity (
    one integer not null primary key,
    id  binary(16) not null
) engine = innodb row_format = dynamic character set utf8mb4
  collate /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */;

-- Jobs between two stores. Way 'out': a job that left for that store and is not known to be there; it is all
-- here, as text. Way 'in': one that came from that store, which may not know it yet.
create table if not exists dibs_moving (
    id    binary(16) not null,
    way   varchar(3) not null,
    store binary(16) not null,
    job   longtext,
    primary key (id, way, store)
) engine = innodb row_format = dynamic character set utf8mb4
  collate /*M! utf8mb4_nopad_bin */ /*!80017 utf8mb4_0900_bin */;
