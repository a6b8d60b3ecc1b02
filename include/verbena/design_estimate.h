// What each design would cost, before anything runs: can it be used here, how long does a request
// take, and why.
//
//   for (const DesignEstimate& design : estimate_designs(device.info(), {.requesters = 40})) {
//     std::cout << design.why << '\n';                     // the cheapest first
//   }
//
// Protocol::kAutomatic and MarkLayout::kAutomatic take the first one that can be used over the
// transport of the options. `verbena explain` prints them all. Requester::design() and
// Client::design() tell what a connection uses.
//
// How it is computed. A design has counts: work requests, doorbells, receives, completions, lines
// to poll, bytes ("patterns" 4, "msgproto" 4). Each count has a time on the device, which gives the
// time that a request takes of every part: both threads, both RNICs with their buses, the link, a
// queue pair. The busiest part limits the rate, or else the round trip and the requests under way.
// What is left out: contexts and translations that do not fit the RNIC's caches, losses, what the
// handler does.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "verbena/device.h"
#include "verbena/rpc.h"
#include "verbena/step_counts.h"

namespace verbena {

// What the design is for.
struct DesignWorkload {
  uint32_t request_bytes = 64;  // also the capacity of the slots
  uint32_t response_bytes = 64;
  uint32_t pending = 1;     // requests under way, of a thread at a responder
  uint32_t requesters = 1;  // nodes that ask the same responder
  uint32_t workers = 1;     // threads of each; above 1, dispatchers are estimated too
  uint32_t responders = 1;  // that each thread asks
  // Of a responder's connections, those that have a request waiting, as a mean. 0: all. The others
  // are polled in vain ("patterns" 7, table 2).
  uint32_t active = 0;
  uint32_t inline_bytes = kDeviceInlineLimit;
  uint32_t signal_interval = 0;
  uint32_t post_batch = 1;
};

struct DesignEstimate {
  Protocol protocol = Protocol::kWriteWrite;
  MarkLayout layout = MarkLayout::kLastBit;  // means something only where uses_mark_layout()
  ReceiveQueues receive_queues = ReceiveQueues::kShared;  // only where requests take receives
  bool takes_receives = false;                            // requests do
  bool dispatcher = false;  // one connection per node instead of one per worker
  Transport transport = Transport::kRc;

  bool usable = false;
  // In one sentence: how it works and what limits it, or what forbids it and what to do.
  std::string why;

  // Whether the times are those of this device: of a simulated one, by its profile. Else they are
  // those of a typical RNIC, or of a software RNIC, and only order and proportion mean something.
  bool of_this_device = false;
  double interval_ns = 0;    // from a request to the next one, of all requesters together
  double round_trip_ns = 0;  // of a request that meets no other one
  double requester_ns = 0;   // of the requesting thread, per request
  double responder_ns = 0;   // of the responding thread
  StepCounts requester;
  StepCounts responder;
  double wire_messages = 0;
  double wire_bytes = 0;                // both ways, with marks and padding
  uint64_t requester_memory_bytes = 0;  // registered, of a requesting thread or dispatcher
  uint64_t responder_memory_bytes = 0;
};

// What a connection or a responder uses.
struct DesignChoice {
  DesignEstimate design;
  std::string why;  // who chose it: the options, the responder, or the estimates
};

// All designs, the cheapest first; those that cannot be used here come last. Control path: reads
// nothing but `device`, and the profile of a simulated one.
std::vector<DesignEstimate> estimate_designs(const DeviceInfo& device,
                                             const DesignWorkload& workload);
// One of them. `layout` is ignored by protocols without a WRITE half.
DesignEstimate estimate_design(const DeviceInfo& device, const DesignWorkload& workload,
                               Protocol protocol, MarkLayout layout,
                               ReceiveQueues receive_queues = ReceiveQueues::kShared,
                               bool dispatcher = false, Transport transport = Transport::kRc);

}  // namespace verbena
