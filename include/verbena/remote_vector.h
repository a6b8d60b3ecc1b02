// Vector IO on remote memory: several pieces of local memory and one range of a region, in one
// operation ("memsem" III-A). There are three ways to do it, and which one is cheapest depends on
// the size of the pieces, their number and the device. RemoteRegion::post_writev() and its like
// take one, or choose.
//
//   for (const VectorEstimate& way : estimate_vector_methods(device.info(), {.entries = 16})) {
//     std::cout << way.why << '\n';                           // the cheapest first
//   }
//
// How it is computed: the steps of each way (work requests, doorbells, gather entries, bytes that
// the CPU copies), each with its time on the device, load the thread, the queue pair and the RNIC;
// the busiest of them, or the latency over the operations under way, is the time from one operation
// to the next. Not in it: translations that miss, losses.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "verbena/device.h"
#include "verbena/posting.h"
#include "verbena/status.h"

namespace verbena {

enum class VectorMethod : uint8_t {
  kSp,   // the CPU copies all pieces into one buffer, which is written by one work request; of a
         // READ, out of one buffer
  kSgl,  // one work request whose gather list has all pieces
  kDoorbell,         // a work request per piece, all announced by one doorbell
  kAutomatic = 255,  // the one that is estimated to be cheapest and can be used
};

// The three, without kAutomatic.
std::span<const VectorMethod> all_vector_methods();
// "sp", "sgl", "doorbell", "automatic".
const char* vector_method_name(VectorMethod method);

struct VectorWorkload {
  uint32_t entries = 4;  // pieces of an operation
  uint32_t entry_bytes = 64;
  bool reads = false;            // READs, else WRITEs
  uint32_t pending = 16;         // operations under way, of a thread
  uint32_t threads = 1;          // that use the device like this at once
  uint32_t staging_bytes = ~0u;  // the buffer of kSp
  uint32_t inline_bytes = kDeviceInlineLimit;
  uint32_t signal_interval = 1;
};

struct VectorEstimate {
  VectorMethod method = VectorMethod::kSp;
  bool usable = false;
  // In one sentence: what it costs and what limits it, or what forbids it and what to do.
  std::string why;
  // Whether the times are those of this device: of a simulated one, by its profile. Else they are
  // those of a typical RNIC, or of a software RNIC, and only order and proportion mean something.
  bool of_this_device = false;
  double interval_ns = 0;  // from one operation of a thread to its next
  double latency_ns = 0;   // of one that meets no other
  double thread_ns = 0;    // of the thread, per operation
};

// All three, the cheapest first; those that cannot be used come last. Control path: reads nothing
// but `device`, and the profile of a simulated one.
std::vector<VectorEstimate> estimate_vector_methods(const DeviceInfo& device,
                                                    const VectorWorkload& workload);

}  // namespace verbena
