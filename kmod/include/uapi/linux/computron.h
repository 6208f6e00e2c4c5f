/* SPDX-License-Identifier: ((GPL-2.0 WITH Linux-syscall-note) OR MIT) */
/*
 * computron.ko: pools of huge pages for the parameters of models, that outlive the processes
 * that fill them. The one header that the module shares with user space.
 *
 * Files
 *
 *   /dev/computron is a misc device. Its calls create, open, list and destroy pools. Whoever may
 *   open it may create pools; mode 0660 and a group say who that is.
 *
 *   A pool file is what COMPUTRON_IOC_POOL_CREATE, _ADOPT and _OPEN return: ioctl, mmap, poll and
 *   read. It is a writer (COMPUTRON_OPEN_WRITE: only for the uid that created the pool, or with
 *   CAP_SYS_ADMIN) or a reader. What a process holds in a pool belongs to its pool file, and ends
 *   with it: when the last descriptor of the file and the last read-only mapping that was made
 *   through it are gone, also because the process was killed,
 *     - its leases are released,
 *     - its LOADING frames are given up (at once, or by way of QUARANTINED while DMA pins them),
 *     - its hot ranges are no longer hot.
 *   Calls that need a writer answer -EACCES on a reader.
 *
 * Pools
 *
 *   A pool has a name, a size (fixed), a quota of bytes for its frames (<= size), a NUMA node and a
 *   creator. It stays, with its CLEAN frames, when no process has it open, until it is destroyed or
 *   the module is unloaded. Its bytes have offsets from 0 to size; a unit is struct
 *   computron_info.unit_bytes of them (2 MiB on x86), and frames occupy whole units. Units have no
 *   memory until they are populated or touched through a writable mapping.
 *
 * Frames
 *
 *   ABSENT -> LOADING -> CLEAN -> ABSENT
 *                |
 *                +-> QUARANTINED -> ABSENT
 *
 *   LOADING      since alloc. Belongs to the file that allocated it, which writes its bytes through
 *                its writable mapping. No one else sees them.
 *   CLEAN        since seal: everybody may read, nobody writes (a promise of the writer: its
 * mapping stays as it is). A frame that is CLEAN and has no lease can be evicted by any writer, and
 * by the kernel when memory is short: then it is ABSENT. QUARANTINED  given up while LOADING, when
 * something (a device, through pinned pages) may still write to it. Charged and in nobody's reach;
 * becomes ABSENT after the last unpin.
 *
 *   A frame is named by (id, generation). Generations are never used again in a pool, ids are.
 * Every call on a frame that is not there any more answers -ESTALE: for a user of CLEAN frames that
 * is an ordinary loss, at any time, unless it has a lease.
 *
 *   The bytes of a frame are zero after it was allocated and populated, but for units that lie in a
 *   hot range: those keep their pages from frame to frame, and with them what they held.
 *
 * Extents
 *
 *   A frame has one linear space of bytes, which its extents map, in order, to bytes of the pool.
 *   Extents consist of whole units and do not cross a multiple of the pool's segment_bytes.
 *
 * mmap of a pool file
 *
 *   The offset is the offset in the pool, a multiple of the page size; [offset, offset + length)
 *   must lie in [0, size) (-EINVAL). Only MAP_SHARED (-EINVAL); no PROT_EXEC (-EACCES). Align
 *   offset and address to unit_bytes to get huge mappings; with no address asked for the kernel
 *   aligns it.
 *
 *   Writer:  any protection. Touching a unit gives it memory. Works for DMA: O_DIRECT, io_uring
 *            fixed buffers, pin_user_pages(FOLL_LONGTERM). A pin through it must be of a LOADING
 *            frame, of a frame with a lease, or of a hot range. The mapping outlives the file.
 *   Reader:  PROT_READ only, and it can never become writable (-EACCES) or longer. A page of it can
 *            be read while it belongs to a CLEAN frame, else SIGBUS. A mapping that lies in one
 *            CLEAN frame at the time of mmap is bound to that frame: SIGBUS once that is gone,
 *            whatever lies there then. Wider mappings show whatever CLEAN frames there are.
 *
 *   Adopted pools. Writer: -EOPNOTSUPP, map the memfd (COMPUTRON_IOC_POOL_MEMFD). Reader: a
 *   range of whole huge pages (-EINVAL) that lies in one CLEAN frame (-ESTALE), which has a
 *   lease as long as there is a mapping of it. The memfd's owner can still punch holes into it:
 *   a reader sees zeros there.
 *
 * read and poll of a pool file
 *
 *   read returns as many struct computron_event as fit, oldest first: the losses of CLEAN frames
 *   since the file was opened that were not caused by this file. It blocks when there is none
 *   (-EAGAIN with O_NONBLOCK); a buffer of less than one event is -EINVAL. POLLIN says that there
 * is one. The kernel keeps the last COMPUTRON_EVENTS events of a pool; a reader that falls behind
 *   gets COMPUTRON_EVENT_OVERFLOW and should list the frames.
 *
 * Structures
 *
 *   Every argument starts with `size`, which the caller sets to sizeof the structure it was
 * compiled with, and `flags`, of which unknown bits are -EINVAL. Fields named reserved must be zero
 * (-EINVAL). New fields are added at the end: a shorter structure than the kernel's is taken as one
 * that ends in zeros, a longer one is accepted while what the kernel does not know is zero
 * (-E2BIG), and one shorter than the first version is -EINVAL. A call is known by its type and
 * number; the size in the request is not looked at. Unknown calls are -ENOTTY. Arrays are passed as
 * the address in a __u64. [in], [out], [inout] say who sets a field; [in] fields are left as they
 * were.
 *
 * Errors of every call: -EFAULT, -EINVAL, -E2BIG, -ENOTTY, -ENOMEM (for the kernel's own needs),
 * and of every call on a pool file -ENODEV after the pool was destroyed, but for those that look
 * (info, stat, lookup, list, extents, read) and those that give up (release, abort).
 */
#ifndef _UAPI_LINUX_COMPUTRON_H
#define _UAPI_LINUX_COMPUTRON_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define COMPUTRON_DEVICE "/dev/computron"

/* Of this header; grows when structures or calls are added. struct computron_info.abi is that
 * of the module. */
#define COMPUTRON_ABI 1

#define COMPUTRON_NAME_BYTES   32 /* of a pool, with the final 0 */
#define COMPUTRON_KEY_BYTES    32
#define COMPUTRON_DIGEST_BYTES 16
#define COMPUTRON_OWNER_BYTES  64
#define COMPUTRON_EVENTS       1024

/**
 * struct computron_ref - the name of a frame
 * @id: number of its first unit, so the frame starts at @id * unit_bytes of the pool; used again by
 *	later frames
 * @generation: never used again in this pool; not 0
 */
struct computron_ref {
	__u64 id;
	__u64 generation;
};

/**
 * struct computron_extent - consecutive bytes of a pool that belong to one frame
 * @offset: in the pool, a multiple of unit_bytes
 * @bytes: a multiple of unit_bytes, not 0
 */
struct computron_extent {
	__u64 offset;
	__u64 bytes;
};

/**
 * enum computron_frame_state - where a frame is in its life
 * @COMPUTRON_FRAME_LOADING: allocated, being filled by its owner
 * @COMPUTRON_FRAME_CLEAN: sealed
 * @COMPUTRON_FRAME_QUARANTINED: given up, still pinned for DMA
 */
enum computron_frame_state {
	COMPUTRON_FRAME_LOADING = 1,
	COMPUTRON_FRAME_CLEAN = 2,
	COMPUTRON_FRAME_QUARANTINED = 3,
};

/* struct computron_frame_info.flags */
#define COMPUTRON_FRAME_HAS_DIGEST (1U << 0) /* it was sealed with COMPUTRON_SEAL_DIGEST */
#define COMPUTRON_FRAME_MINE       (1U << 1) /* LOADING, and this file allocated it */
#define COMPUTRON_FRAME_POPULATED  (1U << 2) /* LOADING: a populate has ended well; or CLEAN */

/**
 * struct computron_frame_info - what is known of a frame
 * @ref: its name
 * @bytes: what alloc asked for
 * @charged: what it takes of the quota: @bytes rounded up to whole units
 * @huge_bytes: how many of them are in huge pages, as populate and seal found it
 * @state: enum computron_frame_state
 * @flags: COMPUTRON_FRAME_*
 * @leases: held by all files together
 * @extents: how many there are
 * @key: given to alloc
 * @digest: given to seal; zero unless COMPUTRON_FRAME_HAS_DIGEST
 * @owner: given to seal
 */
struct computron_frame_info {
	struct computron_ref ref;
	__u64 bytes;
	__u64 charged;
	__u64 huge_bytes;
	__u32 state;
	__u32 flags;
	__u32 leases;
	__u32 extents;
	__u8 key[COMPUTRON_KEY_BYTES];
	__u8 digest[COMPUTRON_DIGEST_BYTES];
	__u8 owner[COMPUTRON_OWNER_BYTES];
};

/* ---- any computron file ------------------------------------------------------------------ */

/* struct computron_info.features */
#define COMPUTRON_FEATURE_HUGE   (1ULL << 0) /* this kernel can give huge pages to pools */
#define COMPUTRON_FEATURE_ADOPT  (1ULL << 1) /* COMPUTRON_IOC_POOL_ADOPT */
#define COMPUTRON_FEATURE_SHRINK (1ULL << 2) /* memory pressure evicts CLEAN frames */
#define COMPUTRON_FEATURE_DMABUF (1ULL << 3) /* COMPUTRON_IOC_FRAME_EXPORT */

/**
 * struct computron_info - what this module is (COMPUTRON_IOC_INFO)
 * @size: [in] sizeof(struct computron_info)
 * @flags: [in] 0
 * @abi: [out] COMPUTRON_ABI that the module was compiled with
 * @pools: [out] how many have a name
 * @features: [out] COMPUTRON_FEATURE_*
 * @unit_bytes: [out] what frames, extents and pools are multiples of
 * @max_bytes: [out] limit of the sizes of all pools together, adopted ones apart
 * @total_bytes: [out] sizes of all pools together, adopted ones apart; also of those that were
 *	destroyed, while a mapping keeps their memory
 * @version: [out] of the module, for people
 */
struct computron_info {
	__u32 size;
	__u32 flags;
	__u32 abi;
	__u32 pools;
	__u64 features;
	__u64 unit_bytes;
	__u64 max_bytes;
	__u64 total_bytes;
	char version[32];
};

/* ---- /dev/computron ---------------------------------------------------------------------- */

/* struct computron_pool_create.flags, _open.flags, _adopt.flags. The descriptor is close-on-exec.
 */
#define COMPUTRON_OPEN_WRITE (1U << 0) /* a writer; create and adopt always give one */

/**
 * struct computron_pool_create - make a pool (COMPUTRON_IOC_POOL_CREATE)
 * @size: [in] sizeof(struct computron_pool_create)
 * @flags: [in] 0
 * @name: [in] 1 to 31 of A-Z a-z 0-9 . _ -, not starting with a dot
 * @bytes: [inout] size of the pool; rounded down to whole units
 * @quota: [in] bytes that its frames may take; 0: all
 * @floor: [in] bytes of CLEAN frames that memory pressure leaves
 * @segment_bytes: [in] extents do not cross multiples of this; a multiple of unit_bytes, or 0 for
 * none
 * @node: [in] NUMA node that its memory should come from; -1: any
 * @fd: [out] a writer's pool file
 *
 * -EEXIST: there is a pool of that name. -EINVAL: the name, less than one unit, a quota above the
 * size, a segment size that is none. -ENXIO: no such node online. -ENOSPC: above the module's
 * limit (parameters max_bytes and max_pools). -EMFILE, -ENFILE.
 */
struct computron_pool_create {
	__u32 size;
	__u32 flags;
	char name[COMPUTRON_NAME_BYTES];
	__u64 bytes;
	__u64 quota;
	__u64 floor;
	__u64 segment_bytes;
	__s32 node;
	__s32 fd;
};

/**
 * struct computron_pool_open - open a pool that is there (COMPUTRON_IOC_POOL_OPEN)
 * @size: [in] sizeof(struct computron_pool_open)
 * @flags: [in] COMPUTRON_OPEN_WRITE or 0
 * @name: [in] of the pool
 * @bytes: [out] its size
 * @segment_bytes: [out] as it was created with
 * @node: [out] likewise
 * @fd: [out] a pool file
 *
 * -ENOENT: none of that name. -EACCES: not the creator, with COMPUTRON_OPEN_WRITE. -EMFILE,
 * -ENFILE.
 */
struct computron_pool_open {
	__u32 size;
	__u32 flags;
	char name[COMPUTRON_NAME_BYTES];
	__u64 bytes;
	__u64 segment_bytes;
	__s32 node;
	__s32 fd;
};

/**
 * struct computron_pool_adopt - make a pool of a memfd with huge pages (COMPUTRON_IOC_POOL_ADOPT)
 * @size: [in] sizeof(struct computron_pool_adopt)
 * @flags: [in] 0
 * @name: [in] as for create
 * @quota: [in] as for create
 * @segment_bytes: [in] as for create
 * @memfd: [in] a descriptor of memfd_create(MFD_HUGETLB), open for writing. Its length, rounded
 *down to its huge pages, is the size of the pool.
 * @node: [in] what pool_open will report; -1
 * @fd: [out] a writer's pool file
 * @reserved: 0
 * @bytes: [out] size of the pool
 *
 * The pool keeps the memfd; its units are at least a page of it, so unit_bytes of
 * struct computron_pool_stat holds, not that of struct computron_info. The kernel does not take
 * frames of such a pool when memory is short; evict gives the pages back to the memfd's huge page
 *pool.
 *
 * -EBADF, -EINVAL: not such a memfd. -ENOSPC: longer than all memory, or too many pools. Else as
 * create.
 */
struct computron_pool_adopt {
	__u32 size;
	__u32 flags;
	char name[COMPUTRON_NAME_BYTES];
	__u64 quota;
	__u64 segment_bytes;
	__s32 memfd;
	__s32 node;
	__s32 fd;
	__u32 reserved;
	__u64 bytes;
};

/* struct computron_pool_info.flags */
#define COMPUTRON_POOL_ADOPTED (1U << 0)

/**
 * struct computron_pool_info - a row of the list of pools
 * @name: of the pool
 * @bytes: its size
 * @used: charged to frames
 * @frames: how many there are
 * @flags: COMPUTRON_POOL_*
 * @uid: of the creator, in the caller's user namespace
 * @node: NUMA node or -1
 */
struct computron_pool_info {
	char name[COMPUTRON_NAME_BYTES];
	__u64 bytes;
	__u64 used;
	__u32 frames;
	__u32 flags;
	__u32 uid;
	__s32 node;
};

/**
 * struct computron_pool_list - the pools (COMPUTRON_IOC_POOL_LIST)
 * @size: [in] sizeof(struct computron_pool_list)
 * @flags: [in] 0
 * @count: [inout] room in @pools in rows; then how many were written
 * @row_bytes: [in] sizeof(struct computron_pool_info)
 * @pools: [in] address of an array
 * @total: [out] how many pools there are
 */
struct computron_pool_list {
	__u32 size;
	__u32 flags;
	__u32 count;
	__u32 row_bytes;
	__u64 pools;
	__u64 total;
};

/* struct computron_pool_destroy.flags */
#define COMPUTRON_DESTROY_OPEN (1U << 0) /* also when it is open */

/**
 * struct computron_pool_destroy - end a pool (COMPUTRON_IOC_POOL_DESTROY)
 * @size: [in] sizeof(struct computron_pool_destroy)
 * @flags: [in] COMPUTRON_DESTROY_OPEN or 0
 * @name: [in] of the pool
 *
 * The name is free at once. With COMPUTRON_DESTROY_OPEN and while it is open, unleased CLEAN
 * frames are evicted and calls on its files answer -ENODEV; leased frames, and the memory behind
 * writable mappings, stay until they are given up.
 *
 * -ENOENT. -EACCES: not the creator. -EBUSY: it is open, or a dma-buf of it is.
 */
struct computron_pool_destroy {
	__u32 size;
	__u32 flags;
	char name[COMPUTRON_NAME_BYTES];
};

/* ---- a pool file: the pool --------------------------------------------------------------- */

/* struct computron_pool_stat.flags */
#define COMPUTRON_STAT_SURVEY (1U << 0) /* looks at every page: huge and pinned as they are now */

/**
 * struct computron_pool_stat - the counts of a pool (COMPUTRON_IOC_POOL_STAT)
 * @size: [in] sizeof(struct computron_pool_stat)
 * @flags: [in] COMPUTRON_STAT_SURVEY or 0
 * @unit_bytes: [out] of this pool
 * @bytes: [out] size of the pool
 * @quota: [out] what frames may take
 * @floor: [out] bytes of CLEAN frames that memory pressure leaves
 * @used: [out] charged to frames: the sum of the next three
 * @loading: [out] in LOADING frames
 * @clean: [out] in CLEAN frames
 * @quarantined: [out] in QUARANTINED frames
 * @leased: [out] in CLEAN frames with a lease; part of @clean
 * @reclaimable: [out] what memory pressure could take now, above the floor
 * @hot: [out] in hot ranges, with a frame or without
 * @populated: [out] memory that the pool takes, by the kernel's count of its pages
 * @huge: [out] in frames and in huge pages; without a survey, as populate and seal found it
 * @pinned: [out] in frames and in units that hold pinned pages; without a survey, of frames that
 *could not be evicted for it when that was last tried
 * @frames: [out] how many
 * @files: [out] pool files open
 * @allocs: [out] frames ever allocated
 * @seals: [out] frames ever sealed
 * @evictions: [out] CLEAN frames ever evicted by request
 * @evicted_bytes: [out] and their bytes
 * @reclaims: [out] CLEAN frames ever evicted because memory was short
 * @reclaimed_bytes: [out] and their bytes
 * @refused: [out] evictions of both kinds refused, because leased (by request) or pinned
 * @node: [out] NUMA node or -1
 * @reserved: 0
 */
struct computron_pool_stat {
	__u32 size;
	__u32 flags;
	__u64 unit_bytes;
	__u64 bytes;
	__u64 quota;
	__u64 floor;
	__u64 used;
	__u64 loading;
	__u64 clean;
	__u64 quarantined;
	__u64 leased;
	__u64 reclaimable;
	__u64 hot;
	__u64 populated;
	__u64 huge;
	__u64 pinned;
	__u64 frames;
	__u64 files;
	__u64 allocs;
	__u64 seals;
	__u64 evictions;
	__u64 evicted_bytes;
	__u64 reclaims;
	__u64 reclaimed_bytes;
	__u64 refused;
	__s32 node;
	__u32 reserved;
};

/* struct computron_pool_set.flags: what to set */
#define COMPUTRON_SET_QUOTA (1U << 0)
#define COMPUTRON_SET_FLOOR (1U << 1)

/**
 * struct computron_pool_set - change limits (COMPUTRON_IOC_POOL_SET); writers
 * @size: [in] sizeof(struct computron_pool_set)
 * @flags: [in] COMPUTRON_SET_*
 * @quota: [in] bytes, at most the size of the pool; frames above it stay, and alloc is refused
 * @floor: [in] bytes
 */
struct computron_pool_set {
	__u32 size;
	__u32 flags;
	__u64 quota;
	__u64 floor;
};

/* struct computron_pool_hot.flags */
#define COMPUTRON_HOT_ON (1U << 0) /* else off */

/**
 * struct computron_pool_hot - a range that is registered for DMA (COMPUTRON_IOC_POOL_HOT); writers
 * @size: [in] sizeof(struct computron_pool_hot)
 * @flags: [in] COMPUTRON_HOT_ON or 0
 * @offset: [in] in the pool, a multiple of unit_bytes
 * @bytes: [in] a multiple of unit_bytes
 *
 * Set it before the range is pinned, clear it after it was unpinned. Units in a hot range keep
 * their pages: memory pressure leaves them, and evict and abort take the frame away but not its
 * pages, which are still the ones that are registered when the units get their next frame. So a
 * frame in a hot range can be evicted while its pages are pinned. A range belongs to the file,
 * which clears only what it has set itself.
 *
 * -EINVAL: the range, or not hot by this file (off), or hot by it already (on) in part. -EBUSY: a
 * QUARANTINED frame lies in it, which goes when its DMA has ended.
 */
struct computron_pool_hot {
	__u32 size;
	__u32 flags;
	__u64 offset;
	__u64 bytes;
};

/**
 * struct computron_pool_memfd - the memfd of an adopted pool (COMPUTRON_IOC_POOL_MEMFD); writers
 * @size: [in] sizeof(struct computron_pool_memfd)
 * @flags: [in] 0
 * @fd: [out] one more descriptor of the memfd, close-on-exec
 * @reserved: 0
 *
 * -EOPNOTSUPP: not an adopted pool. -EMFILE.
 */
struct computron_pool_memfd {
	__u32 size;
	__u32 flags;
	__s32 fd;
	__u32 reserved;
};

/* ---- a pool file: frames ----------------------------------------------------------------- */

/* struct computron_frame_alloc.flags */
#define COMPUTRON_ALLOC_RESERVE (1U << 0) /* without memory, until populate */

/**
 * struct computron_frame_alloc - a new LOADING frame (COMPUTRON_IOC_FRAME_ALLOC); writers
 * @size: [in] sizeof(struct computron_frame_alloc)
 * @flags: [in] COMPUTRON_ALLOC_RESERVE or 0
 * @key: [in] names it; there is one frame of a key, QUARANTINED ones apart
 * @bytes: [in] not 0
 * @ref: [out] its name; with -EEXIST that of the frame of this key
 * @charged: [out] @bytes in whole units
 * @huge_bytes: [out] how many of them are in huge pages; 0 with COMPUTRON_ALLOC_RESERVE
 * @extents: [out] how many
 * @reserved: 0
 *
 * -EEXIST. -EFBIG: more than the pool's size. -EDQUOT: more than is left of the quota, which is the
 * size if nothing else was said. When populating: -ENOMEM, and -EINTR when the process is killed;
 * the frame is ABSENT then.
 */
struct computron_frame_alloc {
	__u32 size;
	__u32 flags;
	__u8 key[COMPUTRON_KEY_BYTES];
	__u64 bytes;
	struct computron_ref ref;
	__u64 charged;
	__u64 huge_bytes;
	__u32 extents;
	__u32 reserved;
};

/**
 * struct computron_frame_populate - give a LOADING frame its memory (COMPUTRON_IOC_FRAME_POPULATE)
 * @size: [in] sizeof(struct computron_frame_populate)
 * @flags: [in] 0
 * @ref: [in] a LOADING frame of this file
 * @huge_bytes: [out] how many bytes are in huge pages
 *
 * Takes about half a second a GiB; several threads may populate different frames. Where no huge
 * page can be had small ones are taken. -ENOMEM: it has some of its memory now and is LOADING
 * still. -EINTR likewise when the process is killed. -EBUSY: another thread does it. -ESTALE.
 * -EPERM: another file's frame. -EINVAL: not LOADING.
 */
struct computron_frame_populate {
	__u32 size;
	__u32 flags;
	struct computron_ref ref;
	__u64 huge_bytes;
};

/* struct computron_frame_seal.flags */
#define COMPUTRON_SEAL_DIGEST (1U << 0) /* @digest is one */
#define COMPUTRON_SEAL_LEASE  (1U << 1) /* with one lease for this file */

/**
 * struct computron_frame_seal - LOADING -> CLEAN (COMPUTRON_IOC_FRAME_SEAL)
 * @size: [in] sizeof(struct computron_frame_seal)
 * @flags: [in] COMPUTRON_SEAL_*
 * @ref: [in] a LOADING frame of this file
 * @digest: [in] opaque to the kernel; zero without COMPUTRON_SEAL_DIGEST (-EINVAL)
 * @owner: [in] opaque to the kernel
 * @huge_bytes: [out] how many of its bytes are in huge pages, counted now
 *
 * All its units must have memory, by populate or by touching. -EINVAL: they have not, or it is not
 * LOADING; it is LOADING still. -EBUSY: a populate of it is running. -EPERM: another file's frame.
 * -ESTALE.
 */
struct computron_frame_seal {
	__u32 size;
	__u32 flags;
	struct computron_ref ref;
	__u8 digest[COMPUTRON_DIGEST_BYTES];
	__u8 owner[COMPUTRON_OWNER_BYTES];
	__u64 huge_bytes;
};

/**
 * struct computron_frame_op - abort, lease, release and evict
 * @size: [in] sizeof(struct computron_frame_op)
 * @flags: [in] 0
 * @ref: [in] the frame
 *
 * COMPUTRON_IOC_FRAME_ABORT: LOADING -> ABSENT, or -> QUARANTINED while it is pinned outside of hot
 *	ranges. -EINVAL: not LOADING. -EBUSY: a populate is running. -EPERM: another file's.
 *-ESTALE. COMPUTRON_IOC_FRAME_LEASE: one more lease of this file on a CLEAN frame. -EBUSY: LOADING
 *or QUARANTINED. -ESTALE. -EOVERFLOW. COMPUTRON_IOC_FRAME_RELEASE: one less. -EINVAL: this file has
 *none. -ESTALE. COMPUTRON_IOC_FRAME_EVICT: CLEAN -> ABSENT; writers. -EBUSY: leased, LOADING or
 *QUARANTINED, being evicted, or pinned outside of hot ranges. -ESTALE.
 */
struct computron_frame_op {
	__u32 size;
	__u32 flags;
	struct computron_ref ref;
};

/* struct computron_frame_lookup.flags */
#define COMPUTRON_LOOKUP_CONTENT (1U << 0) /* by info.digest and info.owner, not by info.key */
#define COMPUTRON_LOOKUP_REF     (1U << 1) /* by info.ref */

/**
 * struct computron_frame_lookup - find a frame (COMPUTRON_IOC_FRAME_LOOKUP)
 * @size: [in] sizeof(struct computron_frame_lookup)
 * @flags: [in] one COMPUTRON_LOOKUP_*; none: by @info.key
 * @info: [inout] what is sought; then what was found. Other fields need not be set.
 *
 * By key: LOADING or CLEAN. By content: CLEAN, and sealed with this digest and this owner data.
 * -ENOENT: there is none (-ESTALE by ref). It may be stale when it is used.
 */
struct computron_frame_lookup {
	__u32 size;
	__u32 flags;
	struct computron_frame_info info;
};

/**
 * struct computron_frame_list - the frames of a pool (COMPUTRON_IOC_FRAME_LIST)
 * @size: [in] sizeof(struct computron_frame_list)
 * @flags: [in] 0
 * @count: [inout] room in @frames, in rows; then how many were written
 * @row_bytes: [in] sizeof(struct computron_frame_info)
 * @frames: [in] address of an array of struct computron_frame_info; ordered by id
 * @next: [inout] the least id to list, 0 at first; then the one to go on from, or ~0 after the last
 * @total: [out] how many frames there are
 *
 * Frames that come and go between calls may be missed; none is listed twice under one generation.
 */
struct computron_frame_list {
	__u32 size;
	__u32 flags;
	__u32 count;
	__u32 row_bytes;
	__u64 frames;
	__u64 next;
	__u64 total;
};

/**
 * struct computron_frame_extents - where a frame lies (COMPUTRON_IOC_FRAME_EXTENTS)
 * @size: [in] sizeof(struct computron_frame_extents)
 * @flags: [in] 0
 * @ref: [in] the frame
 * @extents: [in] address of an array of struct computron_extent
 * @count: [inout] room in @extents; then how many were written
 * @total: [out] how many there are
 *
 * -ESTALE.
 */
struct computron_frame_extents {
	__u32 size;
	__u32 flags;
	struct computron_ref ref;
	__u64 extents;
	__u32 count;
	__u32 total;
};

/**
 * struct computron_frame_export - a dma-buf of a frame (COMPUTRON_IOC_FRAME_EXPORT)
 * @size: [in] sizeof(struct computron_frame_export)
 * @flags: [in] 0
 * @ref: [in] a CLEAN frame on which this file has a lease
 * @fd: [out] the dma-buf, close-on-exec
 * @reserved: 0
 *
 * The dma-buf has a lease of its own, for as long as it lives. Its length is the charged bytes of
 * the frame. Exported by a reader it can only be read by devices (DMA_TO_DEVICE).
 *
 * -EPERM: no lease. -ESTALE. -EOPNOTSUPP: an adopted pool, or this kernel has no dma-buf. -EMFILE.
 */
struct computron_frame_export {
	__u32 size;
	__u32 flags;
	struct computron_ref ref;
	__s32 fd;
	__u32 reserved;
};

/* ---- a pool file: events ----------------------------------------------------------------- */

/**
 * enum computron_event_type - what happened
 * @COMPUTRON_EVENT_RECLAIMED: memory was short and the kernel evicted a frame
 * @COMPUTRON_EVENT_EVICTED: another file evicted a frame
 * @COMPUTRON_EVENT_OVERFLOW: events were lost; @ref and @bytes are 0
 * @COMPUTRON_EVENT_DESTROYED: the pool was destroyed; @ref and @bytes are 0
 */
enum computron_event_type {
	COMPUTRON_EVENT_RECLAIMED = 1,
	COMPUTRON_EVENT_EVICTED = 2,
	COMPUTRON_EVENT_OVERFLOW = 3,
	COMPUTRON_EVENT_DESTROYED = 4,
};

/**
 * struct computron_event - what read returns an array of
 * @size: sizeof(struct computron_event); always this, read returns whole events
 * @type: enum computron_event_type
 * @ref: the frame that is ABSENT now
 * @bytes: what it was charged
 * @seq: number of the event in the pool, from 1; of OVERFLOW: how many were lost
 */
struct computron_event {
	__u32 size;
	__u32 type;
	struct computron_ref ref;
	__u64 bytes;
	__u64 seq;
};

/* ---- calls ------------------------------------------------------------------------------- */

#define COMPUTRON_IOC_MAGIC 0xDB

#define COMPUTRON_IOC_INFO _IOWR(COMPUTRON_IOC_MAGIC, 0x40, struct computron_info)

/* of /dev/computron */
#define COMPUTRON_IOC_POOL_CREATE  _IOWR(COMPUTRON_IOC_MAGIC, 0x41, struct computron_pool_create)
#define COMPUTRON_IOC_POOL_OPEN    _IOWR(COMPUTRON_IOC_MAGIC, 0x42, struct computron_pool_open)
#define COMPUTRON_IOC_POOL_LIST    _IOWR(COMPUTRON_IOC_MAGIC, 0x43, struct computron_pool_list)
#define COMPUTRON_IOC_POOL_DESTROY _IOWR(COMPUTRON_IOC_MAGIC, 0x44, struct computron_pool_destroy)
#define COMPUTRON_IOC_POOL_ADOPT   _IOWR(COMPUTRON_IOC_MAGIC, 0x45, struct computron_pool_adopt)

/* of a pool file */
#define COMPUTRON_IOC_POOL_STAT   _IOWR(COMPUTRON_IOC_MAGIC, 0x48, struct computron_pool_stat)
#define COMPUTRON_IOC_POOL_SET    _IOWR(COMPUTRON_IOC_MAGIC, 0x49, struct computron_pool_set)
#define COMPUTRON_IOC_POOL_HOT    _IOWR(COMPUTRON_IOC_MAGIC, 0x4a, struct computron_pool_hot)
#define COMPUTRON_IOC_POOL_MEMFD  _IOWR(COMPUTRON_IOC_MAGIC, 0x4b, struct computron_pool_memfd)
#define COMPUTRON_IOC_FRAME_ALLOC _IOWR(COMPUTRON_IOC_MAGIC, 0x50, struct computron_frame_alloc)
#define COMPUTRON_IOC_FRAME_POPULATE \
	_IOWR(COMPUTRON_IOC_MAGIC, 0x51, struct computron_frame_populate)
#define COMPUTRON_IOC_FRAME_SEAL    _IOWR(COMPUTRON_IOC_MAGIC, 0x52, struct computron_frame_seal)
#define COMPUTRON_IOC_FRAME_ABORT   _IOWR(COMPUTRON_IOC_MAGIC, 0x53, struct computron_frame_op)
#define COMPUTRON_IOC_FRAME_LOOKUP  _IOWR(COMPUTRON_IOC_MAGIC, 0x54, struct computron_frame_lookup)
#define COMPUTRON_IOC_FRAME_LIST    _IOWR(COMPUTRON_IOC_MAGIC, 0x55, struct computron_frame_list)
#define COMPUTRON_IOC_FRAME_EXTENTS _IOWR(COMPUTRON_IOC_MAGIC, 0x56, struct computron_frame_extents)
#define COMPUTRON_IOC_FRAME_LEASE   _IOWR(COMPUTRON_IOC_MAGIC, 0x57, struct computron_frame_op)
#define COMPUTRON_IOC_FRAME_RELEASE _IOWR(COMPUTRON_IOC_MAGIC, 0x58, struct computron_frame_op)
#define COMPUTRON_IOC_FRAME_EVICT   _IOWR(COMPUTRON_IOC_MAGIC, 0x59, struct computron_frame_op)
#define COMPUTRON_IOC_FRAME_EXPORT  _IOWR(COMPUTRON_IOC_MAGIC, 0x5a, struct computron_frame_export)

#endif /* _UAPI_LINUX_COMPUTRON_H */
