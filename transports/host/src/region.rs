//! Registered memory: ours, and a peer's as seen from here.

use std::fmt;
use std::ptr::NonNull;
use std::sync::{Arc, Weak};

use hcomm_transport_abi as abi;
use hcomm_types::{Element, Error, ErrorKind, Result};

use crate::channel::Channel;
use crate::device::{Capabilities, Device};

/// Memory of this side that a device knows. A clone is the same region; it ends when the last
/// one is gone.
#[derive(Clone)]
pub struct Region(pub(crate) Arc<RegionInner>);

pub(crate) struct RegionInner {
    device: Device,
    pub(crate) handle: NonNull<abi::Region>,
    address: NonNull<u8>,
    bytes: usize,
    /// What keeps the memory there, if neither the plugin nor the caller does.
    owner: Option<Arc<dyn Send + Sync>>,
}

// SAFETY: slow calls may come from any thread; the address is only handed out.
unsafe impl Send for RegionInner {}
// SAFETY: as for `Send`.
unsafe impl Sync for RegionInner {}

impl Device {
    /// Allocates zeroed, page-aligned memory that peers reach in the best way the link has.
    ///
    /// # Errors
    /// `Unsupported`; `LimitReached` with need and limit.
    pub fn allocate(&self, bytes: usize) -> Result<Region> {
        if !self.info().capabilities.contains(Capabilities::ALLOCATE) {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!("{:?} allocates no memory", self),
            ));
        }
        if bytes == 0 {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "a region has at least 1 byte",
            ));
        }
        let plugin = self.0.info.plugin;
        let mut region = std::ptr::null_mut();
        let mut address = std::ptr::null_mut();
        // SAFETY: the device is alive; both places are ours.
        let status = unsafe {
            (plugin.calls.allocate)(
                self.0.handle.as_ptr(),
                bytes as u64,
                &raw mut region,
                &raw mut address,
            )
        };
        plugin.status("allocate", status)?;
        let (Some(handle), Some(address)) = (NonNull::new(region), NonNull::new(address.cast()))
        else {
            return Err(Error::new(
                ErrorKind::Plugin,
                format!("{} allocate: success without a region", plugin.name()),
            ));
        };
        Ok(Region(Arc::new(RegionInner {
            device: self.clone(),
            handle,
            address,
            bytes,
            owner: None,
        })))
    }

    /// Registers memory that the caller brings.
    ///
    /// # Errors
    /// `Unsupported`; `LimitReached` with need and limit.
    ///
    /// # Safety
    /// `address` is readable and writable for `bytes` bytes until the last clone of the region is
    /// gone, and the caller accepts that peers read and write it meanwhile: no reference to it may
    /// live while a peer's transfer can touch it.
    pub unsafe fn register(&self, address: NonNull<u8>, bytes: usize) -> Result<Region> {
        self.register_owned(address, bytes, None)
    }

    /// Registers the memory of a region of another device with this one, too, so that peers
    /// reach it over either link. It lives as long as both.
    ///
    /// # Errors
    /// `Unsupported`; `LimitReached` with need and limit.
    pub fn register_region(&self, region: &Region) -> Result<Region> {
        let owner: Arc<dyn Send + Sync> = Arc::new(region.clone());
        self.register_owned(region.address(), region.bytes(), Some(owner))
    }

    /// Registers memory that was handed over; it lives as long as the region and its handle.
    ///
    /// # Errors
    /// `Unsupported`; `LimitReached` with need and limit.
    pub fn register_memory<T: Element>(&self, memory: &Arc<UserMemory<T>>) -> Result<Region> {
        let owner: Arc<dyn Send + Sync> = Arc::<UserMemory<T>>::clone(memory);
        self.register_owned(memory.address.cast(), memory.bytes(), Some(owner))
    }

    /// Registers memory that stays valid by the caller's promise or because `owner` is held.
    fn register_owned(
        &self,
        address: NonNull<u8>,
        bytes: usize,
        owner: Option<Arc<dyn Send + Sync>>,
    ) -> Result<Region> {
        if bytes == 0 {
            return Err(Error::new(
                ErrorKind::InvalidArgument,
                "a region has at least 1 byte",
            ));
        }
        let plugin = self.0.info.plugin;
        let mut region = std::ptr::null_mut();
        // SAFETY: the device is alive; the memory is valid until the region ends, see above.
        let status = unsafe {
            (plugin.calls.register)(
                self.0.handle.as_ptr(),
                address.as_ptr().cast(),
                bytes as u64,
                &raw mut region,
            )
        };
        plugin.status("register", status)?;
        let handle = NonNull::new(region).ok_or_else(|| {
            Error::new(
                ErrorKind::Plugin,
                format!("{} register: success without a region", plugin.name()),
            )
        })?;
        Ok(Region(Arc::new(RegionInner {
            device: self.clone(),
            handle,
            address,
            bytes,
            owner,
        })))
    }
}

impl Region {
    /// Where it is.
    #[must_use]
    #[inline]
    pub fn address(&self) -> NonNull<u8> {
        self.0.address
    }

    /// Bytes.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> usize {
        self.0.bytes
    }

    /// The device that knows it.
    #[must_use]
    pub fn device(&self) -> &Device {
        &self.0.device
    }

    /// Whether it is the same region.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// A handle that does not keep it.
    #[must_use]
    pub fn downgrade(&self) -> WeakRegion {
        WeakRegion(Arc::downgrade(&self.0))
    }

    /// Handles of it that there are, this one included.
    #[must_use]
    pub fn handles(&self) -> usize {
        Arc::strong_count(&self.0)
    }

    /// What a peer needs to import it.
    ///
    /// # Errors
    /// What the plugin says.
    pub fn export(&self) -> Result<Vec<u8>> {
        let device = &self.0.device.0;
        let mut blob = vec![0; device.info.max_blob_bytes as usize];
        let mut len = 0;
        // SAFETY: device and region are alive; `blob` has as much room as we say.
        let status = unsafe {
            (device.info.plugin.calls.export_region)(
                device.handle.as_ptr(),
                self.0.handle.as_ptr(),
                blob.as_mut_ptr(),
                blob.len() as u32,
                &raw mut len,
            )
        };
        device.info.plugin.status("export_region", status)?;
        blob.truncate(len as usize);
        Ok(blob)
    }
}

/// A region that may be gone: its identity, which no other region ever has.
#[derive(Clone, Debug)]
pub struct WeakRegion(Weak<RegionInner>);

impl WeakRegion {
    /// Whether it is this one.
    #[must_use]
    pub fn is(&self, region: &Region) -> bool {
        std::ptr::eq(self.0.as_ptr(), Arc::as_ptr(&region.0))
    }

    /// Whether it has ended.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        self.0.strong_count() == 0
    }
}

impl fmt::Debug for Region {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Region({} bytes, {:?})", self.0.bytes, self.0.device)
    }
}

impl Drop for RegionInner {
    fn drop(&mut self) {
        let device = &self.device.0;
        // SAFETY: this was the last handle.
        let status = unsafe {
            (device.info.plugin.calls.deregister)(device.handle.as_ptr(), self.handle.as_ptr())
        };
        if let Err(error) = device.info.plugin.status("deregister", status) {
            tracing::warn!(%error, "a region did not end; its memory is kept");
            std::mem::forget(self.owner.take());
        }
    }
}

/// Memory that a program hands over to be registered, and may get back when nobody uses it any
/// more. While it is here, there is no reference to it: peers may change it at any time.
#[derive(Debug)]
pub struct UserMemory<T: Element> {
    address: NonNull<T>,
    count: usize,
}

// SAFETY: it owns the elements, which are plain data, and gives no reference to them.
unsafe impl<T: Element> Send for UserMemory<T> {}
// SAFETY: as for `Send`.
unsafe impl<T: Element> Sync for UserMemory<T> {}

impl<T: Element> UserMemory<T> {
    /// Takes memory over.
    #[must_use]
    pub fn new(memory: Box<[T]>) -> Arc<Self> {
        let memory = NonNull::from(Box::leak(memory));
        Arc::new(Self {
            address: memory.cast(),
            count: memory.len(),
        })
    }

    /// Bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.count * size_of::<T>()
    }

    /// Gives the memory back.
    ///
    /// # Errors
    /// The handle, as it was, while a region or another handle needs the memory.
    pub fn into_inner(self: Arc<Self>) -> Result<Box<[T]>, Arc<Self>> {
        let memory = std::mem::ManuallyDrop::new(Arc::try_unwrap(self)?);
        let elements = NonNull::slice_from_raw_parts(memory.address, memory.count);
        // SAFETY: it came from a box in `new`, and this was its last owner, which does not drop.
        Ok(unsafe { Box::from_raw(elements.as_ptr()) })
    }
}

impl<T: Element> Drop for UserMemory<T> {
    fn drop(&mut self) {
        let elements = NonNull::slice_from_raw_parts(self.address, self.count);
        // SAFETY: it came from a box in `new`, and this was its last owner.
        drop(unsafe { Box::from_raw(elements.as_ptr()) });
    }
}

/// A peer's region, reachable through one channel. A clone is the same import.
#[derive(Clone)]
pub struct Import(pub(crate) Arc<ImportInner>);

pub(crate) struct ImportInner {
    pub(crate) channel: Channel,
    pub(crate) handle: NonNull<abi::Import>,
    pub(crate) bytes: u64,
    pub(crate) address: Option<NonNull<u8>>,
}

// SAFETY: slow calls may come from any thread; the address is only handed out.
unsafe impl Send for ImportInner {}
// SAFETY: as for `Send`.
unsafe impl Sync for ImportInner {}

impl Import {
    /// Bytes of the peer's region.
    #[must_use]
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.0.bytes
    }

    /// Where the peer's memory is mapped here; `None` where the link cannot map it.
    #[must_use]
    #[inline]
    pub fn address(&self) -> Option<NonNull<u8>> {
        self.0.address
    }

    /// Whether it is the same import.
    #[must_use]
    #[inline]
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The channel through which it was imported.
    #[must_use]
    #[inline]
    pub fn channel(&self) -> &Channel {
        &self.0.channel
    }
}

impl fmt::Debug for Import {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mapped = if self.0.address.is_some() {
            "mapped"
        } else {
            "not mapped"
        };
        write!(f, "Import({} bytes, {mapped})", self.0.bytes)
    }
}

impl Drop for ImportInner {
    fn drop(&mut self) {
        self.channel.release_import(self.handle);
    }
}
