//! The suite that every transport must pass, on the linked table and on the built library.

hcomm_transport_conformance::conformance_tests! {
    linked: hcomm_transport_tcp::transport_v1(),
    shared_object: "tcp",
}
