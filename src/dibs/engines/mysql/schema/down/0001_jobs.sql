/*M! drop sequence if exists dibs_token */ /*!80017 do 0 */;
drop table if exists dibs_queues;
drop table if exists dibs_finished;
drop table if exists dibs_jobs;
