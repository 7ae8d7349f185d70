//! The rank graph: discover, load, dump, query, choose.
