// The software RNIC of a process as everything outside of src/device/soft uses it: what
// libverbena.so exports.
//
// A process has one software RNIC, so its code is in one shared library. Whoever needs it (this
// library's own device soft0, the library in front of libibverbs, a module that another program
// loads) loads "libverbena.so" by that name, never by a path: the dynamic linker then gives all of
// them the copy that was loaded first. The name has no version for the same reason: who is older or
// newer meets the same RNIC, and compares kSoftRnicVersion.
//
// Only C types, structures of libibverbs and pointers to functions of C cross this interface: the
// library has a C++ library of its own. Posting and polling do not pass it: they go through
// ibv_context::ops.
#pragma once

#include <infiniband/verbs.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "src/device/soft/observe/watched.h"
#include "src/device/verbs_control.h"
#include "verbena/version.h"

namespace verbena::soft {

inline constexpr const char* kDeviceName = "soft0";
inline constexpr const char* kDevicePrefix = "soft";  // of the names of all: soft0, soft1 ...
inline constexpr const char* kLibraryName = "libverbena.so";
inline constexpr const char* kSysfsTreePrefix = "/sysfs-";  // see sysfs_root()
inline constexpr uint16_t kDefaultPartitionKey = 0xffff;    // full member of the default partition

// Of SoftRnic and of VerbsControl: every change of either raises it.
inline constexpr uint32_t kSoftRnicVersion = 11;

// soft0's connection manager, behind /dev/infiniband/rdma_cm (cm/connection_manager.h).
struct ConnectionChannels {
  // A new one, as open() with these flags: a descriptor, or -1 with errno.
  int (*open)(int flags);
  // A command, as write() to that descriptor. May wait for an event, where a thread can be
  // cancelled.
  ssize_t (*write)(int fd, const void* command, size_t size_bytes);
  // Whether the descriptor still is a channel: programs close some by ways of their own.
  bool (*is_channel)(int fd);
  // To be called when one was closed.
  void (*closed)();
};

// Verbs that VerbsControl does not have, and that programs do not reach through the context.
struct ExtendedControl {
  int (*rereg_mr)(ibv_mr*, int flags, ibv_pd*, void* address, size_t length_bytes, int access);
  int (*resize_cq)(ibv_cq*, int cqe);
  ibv_qp_ex* (*qp_to_qp_ex)(ibv_qp*);
};

// Verbs of unreliable datagrams, each with the contract of the ibv_ function of its name.
struct DatagramVerbs {
  ibv_ah* (*create_ah)(ibv_pd*, ibv_ah_attr*);
  int (*destroy_ah)(ibv_ah*);
  int (*init_ah_from_wc)(ibv_context*, uint8_t port, const ibv_wc*, const ibv_grh*, ibv_ah_attr*);
  int (*attach_mcast)(ibv_qp*, const ibv_gid*, uint16_t lid);
  int (*detach_mcast)(ibv_qp*, const ibv_gid*, uint16_t lid);
};

// Each call may be made from any thread.
struct SoftRnic {
  // These two are the same in all versions, so that versions can be compared.
  uint32_t version;
  const char* release;  // of Verbena, "1.2.3"

  // The first software device; lives as long as the process. Others are in `devices`.
  ibv_device* device;
  // Joins this user's registry of software RNICs. Null with errno on failure, and
  // control->last_error() says why. The context's async_fd is a real descriptor. Each open yields
  // an own context; all share the process's one RNIC.
  ibv_context* (*open_device)(ibv_device*);
  int (*close_device)(ibv_context*);
  const VerbsControl* control;

  // The rest is for the library in front of libibverbs.

  // Prints one line on why this thread's latest call was refused, if there is a reason to give, at
  // most a few a second; VERBENA_LOG=off silences it. Keeps errno.
  void (*report_refusal)(const char* verb);
  // Somebody calls pages_released() for every munmap, MADV_DONTNEED and the like of the program.
  void (*see_discards)();
  // The program gives the pages of [address, address + length) back to the kernel or puts others
  // there: munmap, mmap with MAP_FIXED, MADV_DONTNEED. What peers shared of them becomes zero
  // pages, and a later registration starts anew. Called before the kernel is, for MADV_DONTNEED
  // after it has agreed, on any thread and from malloc, so it neither allocates nor waits long.
  // Does nothing, at the cost of a load, where nothing is shared.
  void (*pages_released)(void* address, size_t length_bytes);
  // Whether peers share a page of the range. No lock, no allocation.
  bool (*shares_any)(const void* address, size_t length_bytes);
  // The protection (PROT_...) of the memory in the range, which to the program is one mapping; -1
  // if some of it is missing, protected otherwise or of something else.
  int (*protection_of)(const void* address, size_t length_bytes);
  const ConnectionChannels* connection_channels;
  // From now on, polls that find nothing may sleep where threads that spin share CPUs: the polling
  // loops are the program's, and do not back off by themselves (poll_pause.h).
  void (*allow_poll_pauses)();
  // The directory with what the kernel would show of the device below /sys, as "ROOT/sys/...", and
  // links to what it shows of real ones (sysfs_tree.h); null where it cannot be made. The caller
  // sees to it that the calls within are not answered from that directory.
  const char* (*sysfs_root)();
  const ExtendedControl* extended;
  const DatagramVerbs* datagrams;
  const Watch* watch;  // for those who look on; needs no open device
  // All software devices, soft0 first. A context is of soft0's kind if it names one of them.
  ibv_device* const* devices;
  size_t device_count;
  __be64 (*device_guid)(const ibv_device*);
  // An entry of the GID table with its type: 0, EINVAL, or ENODATA where it is empty.
  int (*query_gid_entry)(ibv_context*, uint32_t port, uint32_t gid_index, ibv_gid_entry*);
};
static_assert(sizeof(VerbsControl) == 31 * sizeof(void*), "then raise kSoftRnicVersion");
static_assert(sizeof(ExtendedControl) == 3 * sizeof(void*), "then raise kSoftRnicVersion");
static_assert(sizeof(DatagramVerbs) == 5 * sizeof(void*), "then raise kSoftRnicVersion");
static_assert(sizeof(Watch) == 2 * sizeof(void*), "then raise kSoftRnicVersion");
static_assert(sizeof(WatchedProcess) == 48 + sizeof(Counts), "then raise kSoftRnicVersion");
static_assert(sizeof(Counts) == 23 * sizeof(uint64_t), "then raise kSoftRnicVersion");
static_assert(sizeof(SoftRnic) == 21 * sizeof(void*), "then raise kSoftRnicVersion");

// Why a caller of this version cannot use the RNIC that is in `library`; empty if it can.
inline std::string why_unusable(const SoftRnic& found, const std::string& library) {
  if (found.version == kSoftRnicVersion) return "";
  return "soft0: " + library + " is of Verbena " + found.release + " (interface " +
         std::to_string(found.version) + "), and what uses it is of Verbena " + kVersion +
         " (interface " + std::to_string(kSoftRnicVersion) +
         "); a process has one software RNIC, so build all that it loads with one release";
}

}  // namespace verbena::soft

// The software RNIC by the interface of this version; where the library does not have that, by its
// newest one: why_unusable() compares.
extern "C" [[gnu::visibility("default")]] const verbena::soft::SoftRnic* verbena_soft_rnic(
    uint32_t version);
