//! The ways to be wrong.

use std::sync::OnceLock;

macro_rules! ways {
    ($( $(#[$doc:meta])* $way:ident = $word:literal, )*) => {
        /// A way to be wrong.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Wrong {
            $( $(#[$doc])* $way, )*
        }

        impl Wrong {
            /// All ways.
            pub const ALL: &'static [Self] = &[ $( Self::$way, )* ];

            /// Its word in `HCOMM_FAULTY`.
            #[must_use]
            pub const fn word(self) -> &'static str {
                match self {
                    $( Self::$way => $word, )*
                }
            }
        }
    };
}

ways! {
    /// The door returns null.
    NullTable = "null_table",
    /// The table begins with another magic.
    Magic = "magic",
    /// The table has another major version.
    Major = "major",
    /// The table is a header and nothing behind it.
    ShortTable = "short_table",
    /// A mandatory entry is null.
    NullEntry = "null_entry",
    /// All optional entries are null, which is not wrong at all.
    NullOptional = "null_optional",
    /// The table has no text for its vendor.
    NullVendor = "null_vendor",
    /// The table has a name that is not the file's.
    Name = "name",
    /// No protocol bit is known.
    NoProtocol = "no_protocol",
    /// init panics.
    InitPanic = "init_panic",
    /// init says that the vendor library is missing.
    InitMissingLibrary = "init_missing_library",
    /// init says that the vendor library lacks a function.
    InitMissingSymbol = "init_missing_symbol",
    /// init says that there is no device.
    InitNoDevice = "init_no_device",
    /// init returns a status that means nothing.
    InitStatus = "init_status",
    /// The table of fast calls has another magic.
    FastMagic = "fast_magic",
    /// A mandatory fast call is null.
    FastNullEntry = "fast_null_entry",
    /// The device promises memory that can be allocated and registered; there are no such calls.
    FalseCapability = "false_capability",
    /// Notifies of the peer are mapped, which the loop transport does not do; nothing is wrong.
    MapPeer = "map_peer",
    /// As `MapPeer`, for an end without a peer as well: its own lines.
    MapEarly = "map_early",
    /// As `MapPeer`, but the lines are those of the own end.
    MapLines = "map_lines",
    /// As `MapPeer`, with one notify more than there is.
    MapNotifies = "map_notifies",
    /// As `MapPeer`, with half the distance from line to line.
    MapStride = "map_stride",
    /// As `MapPeer`, with the bell of some other process.
    MapBell = "map_bell",
    /// As `MapPeer`, with a state that never changes.
    MapState = "map_state",
    /// The text of a channel is longer than the buffer, and is written all the same.
    DescribeLong = "describe_long",
    /// The text of a channel is cut in the middle of a letter.
    DescribeCut = "describe_cut",
    /// Nothing is wrong.
    Nothing = "nothing",
}

impl Wrong {
    /// What `HCOMM_FAULTY` asked for when the library was first asked for anything; `Err` with the
    /// value if it is no word of ours, `None` if it is not set.
    pub(crate) fn asked() -> Result<Option<Self>, &'static str> {
        static ASKED: OnceLock<Option<String>> = OnceLock::new();
        let asked = ASKED.get_or_init(|| {
            std::env::var_os("HCOMM_FAULTY").map(|word| word.to_string_lossy().into_owned())
        });
        let Some(word) = asked else {
            return Ok(None);
        };
        Self::ALL
            .iter()
            .copied()
            .find(|wrong| wrong.word() == word)
            .map(Some)
            .ok_or(word)
    }

    /// Whether notifies of the peer are mapped, rightly or not.
    pub(crate) const fn maps_peer(self) -> bool {
        matches!(
            self,
            Self::MapPeer
                | Self::MapEarly
                | Self::MapLines
                | Self::MapNotifies
                | Self::MapStride
                | Self::MapBell
                | Self::MapState
        )
    }

    /// Whether this way was asked for.
    pub(crate) fn is_asked(self) -> bool {
        Self::asked() == Ok(Some(self))
    }
}
