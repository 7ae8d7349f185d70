//! The plugin ABI of hcomm: tables, C header, export macro.
