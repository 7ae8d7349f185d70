//! The suite once more, as it runs where the system forbids the direct way to user memory.

fn subject(test: &str) -> hcomm_transport_conformance::Subject {
    hcomm_transport_shm::hook::stage_everywhere();
    hcomm_transport_conformance::Subject::linked(hcomm_transport_shm::transport_v1(), test)
}

hcomm_transport_conformance::group_tests! {}
