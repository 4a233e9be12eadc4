//! Size classes: multiples of 8 up to 128 bytes, then eight steps for each doubling. So rounding up
//! wastes at most an eighth above 64 bytes.

use super::pages::PAGE_BYTES;

/// The largest object in a slab. Larger ones get a run of pages.
pub const MAX_SLAB_OBJECT: usize = 32 * 1024;
/// The number of size classes.
pub const CLASS_COUNT: usize = LINEAR_CLASSES + 8 * DOUBLINGS;

const MIN_OBJECT: usize = 16;
const LINEAR_LIMIT: usize = 128;
const LINEAR_LIMIT_LOG2: usize = LINEAR_LIMIT.ilog2() as usize;
const LINEAR_CLASSES: usize = (LINEAR_LIMIT - MIN_OBJECT) / 8 + 1;
const DOUBLINGS: usize = MAX_SLAB_OBJECT.ilog2() as usize - LINEAR_LIMIT_LOG2;

const MAGAZINE_MAX_OBJECTS: usize = 64;
const MAGAZINE_MAX_BYTES: usize = 8 * 1024;

/// The constants of one class.
#[derive(Clone, Copy)]
pub(super) struct ClassInfo {
    pub object_bytes: u32,
    /// The number of objects in a page.
    pub per_page: u32,
    /// The number of objects that a magazine may hold. 0: the class has no magazines.
    pub magazine_limit: u32,
    /// The number of objects moved between a magazine and the class at a time, at least 1.
    pub batch: u32,
}

pub(super) static CLASSES: [ClassInfo; CLASS_COUNT] = build_classes();

/// The smallest class whose objects hold `size` bytes, which is at most [`MAX_SLAB_OBJECT`].
#[inline]
pub(super) const fn class_of(size: usize) -> usize {
    debug_assert!(size <= MAX_SLAB_OBJECT);
    if size <= LINEAR_LIMIT {
        let size = if size < MIN_OBJECT { MIN_OBJECT } else { size };
        return (size - MIN_OBJECT).div_ceil(8);
    }
    let last_byte = size - 1;
    let doubling = last_byte.ilog2() as usize;
    let eighth = (last_byte >> (doubling - 3)) - 8;
    LINEAR_CLASSES + (doubling - LINEAR_LIMIT_LOG2) * 8 + eighth
}

/// The size of the memory that an object of `size` bytes gets: that of its class, or of its pages.
#[inline]
pub(super) fn size_of_object(size: usize) -> usize {
    if size > MAX_SLAB_OBJECT {
        return size.next_multiple_of(PAGE_BYTES);
    }
    CLASSES[class_of(size)].object_bytes as usize
}

/// A number that stands for the size of the memory of such objects. 0: more than that is to be
/// known.
#[inline]
pub(super) fn code_of(size: usize) -> u8 {
    const { assert!(CLASS_COUNT < u8::MAX as usize) };
    if size > MAX_SLAB_OBJECT {
        return 0;
    }
    class_of(size) as u8 + 1
}

/// The size that such a number, which is not 0, stands for.
#[inline]
pub(super) fn size_of_code(code: u8) -> usize {
    CLASSES[code as usize - 1].object_bytes as usize
}

/// The memory that an object of `size` bytes takes: its share of a page, or its pages.
pub const fn memory_of(size: usize) -> usize {
    if size > MAX_SLAB_OBJECT {
        return size.next_multiple_of(PAGE_BYTES);
    }
    PAGE_BYTES / CLASSES[class_of(size)].per_page as usize
}

const fn object_bytes(class: usize) -> usize {
    if class < LINEAR_CLASSES {
        return MIN_OBJECT + class * 8;
    }
    let step = class - LINEAR_CLASSES;
    let doubling = LINEAR_LIMIT_LOG2 + step / 8;
    (9 + step % 8) << (doubling - 3)
}

const fn build_classes() -> [ClassInfo; CLASS_COUNT] {
    let empty = ClassInfo { object_bytes: 0, per_page: 0, magazine_limit: 0, batch: 1 };
    let mut classes = [empty; CLASS_COUNT];
    let mut class = 0;
    while class < CLASS_COUNT {
        let bytes = object_bytes(class);
        let by_bytes = MAGAZINE_MAX_BYTES / bytes;
        let limit = if by_bytes < MAGAZINE_MAX_OBJECTS { by_bytes } else { MAGAZINE_MAX_OBJECTS };
        classes[class] = ClassInfo {
            object_bytes: bytes as u32,
            per_page: (PAGE_BYTES / bytes) as u32,
            magazine_limit: limit as u32,
            batch: if limit < 2 { 1 } else { (limit / 2) as u32 },
        };
        class += 1;
    }
    classes
}

const _: () = {
    assert!(CLASS_COUNT == 79);
    let mut class = 0;
    while class < CLASS_COUNT {
        let bytes = object_bytes(class);
        assert!(bytes.is_multiple_of(8));
        assert!(class_of(bytes) == class);
        assert!(bytes == MAX_SLAB_OBJECT || class_of(bytes + 1) == class + 1);
        class += 1;
    }
    assert!(object_bytes(CLASS_COUNT - 1) == MAX_SLAB_OBJECT);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_fits_its_class_and_wastes_an_eighth_at_most() {
        for size in 1..=MAX_SLAB_OBJECT {
            let class = class_of(size);
            let bytes = object_bytes(class);
            assert!(bytes >= size, "size {size} got {bytes}");
            assert!(class == 0 || object_bytes(class - 1) < size, "size {size} got {bytes}");
            assert!(bytes - size < 8 || (bytes - size) * 8 <= size || size < MIN_OBJECT);
        }
        assert_eq!(class_of(0), 0);
    }

    #[test]
    fn magazines_are_bounded() {
        for info in &CLASSES {
            assert!(info.magazine_limit as usize <= MAGAZINE_MAX_OBJECTS);
            assert!((info.magazine_limit * info.object_bytes) as usize <= MAGAZINE_MAX_BYTES);
            assert!(info.batch >= 1 && info.per_page >= 2);
            assert!(info.magazine_limit == 0 || info.batch <= info.magazine_limit);
        }
    }
}
