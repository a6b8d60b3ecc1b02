// What happened in a simulation, step by step: for those who ask where the time of a message went.
//
// A simulation has none, or one that its owner gave it (Simulation::record()). Each step tells
// which unit did what to which message, and from when to when; a message is known by the queue pair
// whose WQE it is and its number there. Steps in which a message waits are steps too, so that
// those of one message follow each other; some waits are what lies between two steps
// (src/bench/explain/message_path.h).
#pragma once

#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "src/device/sim/event_queue.h"
#include "src/device/sim/fabric.h"

namespace verbena::sim {

struct Fiber;
struct QueuePair;

enum class StepKind : uint8_t {
  // Of a thread.
  kPoll,           // of words in memory
  kHandle,         // what was found there
  kCopy,           // and clearing
  kHandOver,       // to another thread
  kPollEmpty,      // ibv_poll_cq, which costs this in any case
  kTake,           // a completion of a message
  kReap,           // of something sent
  kPostReceive,    //
  kBuild,          // a send WQE
  kBlueFlame,      // a WQE written into the RNIC, with the lock held
  kRing,           // a doorbell's store
  kLockWait,       // for the lock of BlueFlame
  kBusStall,       // a store that the bus does not take
  kIdle,           // polls, and nothing comes
  kAsleep,         //
  kOtherWork,      //
  kDetection,      // what had come was not polled yet
  kOtherMessages,  // a thread's time for them
  // Of the bus.
  kDoorbell,
  kWqeFetch,
  kPayloadFetch,
  kPlacement,
  kCompletionEntry,
  kBusWait,
  kPlacementOrder,  // behind what came before
  // Of the RNIC.
  kDoorbellWait,  // behind doorbells that came before
  kSend,
  kSendPipeline,   // beside other packets
  kTurn,           // waits for one on the sending side
  kPacing,         // the queue pair may not send faster
  kSameQueuePair,  // what it sends comes before
  kSendOrder,
  kReceive,
  kReceivePipeline,
  kReceiveWait,
  kReceiveOrder,
  kReceiveEntry,  // waits for one to be fetched
  // Of its caches.
  kSendMiss,
  kReceiveMiss,
  kTranslationMiss,
  // Of the network.
  kLinkWait,
  kCable,
  kSwitchQueue,
  kLink,
  kSwitch,
  kUnexplained,  // between two steps, for no reason that is known
};

enum class Component : uint8_t {
  kProcessor,
  kPosting,
  kBus,
  kSendingSide,
  kReceivingSide,
  kCaches,
  kNetwork,
  kNone
};

const char* text_of(StepKind kind);
bool is_wait(StepKind kind);
Component component_of(StepKind kind);
const char* text_of(Component component);

// A send WQE, for as long as its queue pair lives.
struct MessageId {
  uint32_t node = 0;
  uint32_t queue_pair = 0;
  uint64_t number = 0;
  bool operator==(const MessageId&) const = default;
};

inline constexpr uint32_t kNoThread = UINT32_MAX;
inline constexpr uint32_t kAllPackets = UINT32_MAX;

struct Step {
  StepKind kind = StepKind::kUnexplained;
  PacketKind packet = PacketKind::kRequest;
  uint32_t node = 0;             // where it happens
  uint32_t thread = kNoThread;   // in Recorder::threads()
  uint32_t index = kAllPackets;  // of the packet
  bool named = false;            // `message` says something
  MessageId message{};           // of several that are posted together, the first
  Time begin = 0;
  Time end = 0;
};

// What a step is about.
struct StepOf {
  MessageId message;
  PacketKind packet = PacketKind::kRequest;
  uint32_t index = kAllPackets;
};

class Recorder {
 public:
  // Nothing is kept beyond `most_steps`.
  explicit Recorder(size_t most_steps) : most_steps_(most_steps) {}

  struct Thread {
    uint32_t node;
    uint32_t number;
    std::string name;
  };
  // Entries that were posted by one call.
  struct Post {
    MessageId message;
    uint64_t first = 0;  // of those posted with it
    uint32_t thread = kNoThread;
    Time rang_at = 0;
    uint64_t address = 0;  // of its first bytes
    uint32_t length_bytes = 0;
    ibv_wr_opcode opcode = IBV_WR_SEND;
  };
  // A packet's payload became visible.
  struct Placed {
    MessageId message;
    uint32_t node = 0;
    uint64_t address = 0;
    uint32_t bytes = 0;
    Time at = 0;
  };
  // A request whose response a thread took, as that thread measured it.
  struct Taken {
    uint32_t thread = kNoThread;
    uint64_t posted_ns = 0;
    uint64_t taken_ns = 0;
    Time taken = 0;
    uint64_t request = 0;  // their addresses
    uint64_t response = 0;
  };

  const std::vector<Step>& steps() const { return steps_; }
  const std::vector<Thread>& threads() const { return threads_; }
  const std::vector<Post>& posts() const { return posts_; }
  const std::vector<Placed>& placed() const { return placed_; }
  const std::vector<Taken>& taken() const { return taken_; }
  // Until then all steps are there.
  Time complete_until() const { return complete_until_; }

  // --- from the simulation; steps without a duration are none ---

  void step(StepKind kind, uint32_t node, const StepOf& of, Time begin, Time end);
  // Over a bus or through another server, which was free from `free` on.
  void served(StepKind wait, StepKind kind, uint32_t node, const StepOf& of, Time now, Time free,
              Time end);
  // `about`: the WQEs that are posted, if it is about some.
  void thread_step(const Fiber& fiber, StepKind kind, Time begin, Time end,
                   const MessageId* about = nullptr);
  // What the next charged() is for.
  void next_charge(StepKind kind) { next_charge_ = {.kind = kind}; }
  void next_charge(StepKind kind, const QueuePair& qp, uint64_t first) {
    next_charge_ = {.kind = kind, .named = true, .message = of(qp, first).message};
  }
  void charged(const Fiber& fiber, Time begin, Time end);
  // A thread's own work from `begin` to `end`: polls first, copies last.
  void worked(const Fiber& fiber, bool found, Time begin, Time polled, Time copied, Time end);
  // The doorbell for the WQEs from `first` to before `count`; no thread outside of all.
  void doorbell(const Fiber* fiber, QueuePair& qp, uint64_t first, uint64_t count, Time now,
                Time there);
  // Some of the time that a packet takes next is a cache's fault.
  void missed(Time share) { missed_ += share; }
  // A packet on the sending or receiving side, from `begin` to `end`, that share included.
  void handled(StepKind kind, StepKind miss, uint32_t node, const StepOf& of, Time begin, Time end);
  void packet_placed(const Packet& packet, uint64_t address, Time now);
  void message_taken(const Fiber& fiber, Taken taken);

  static StepOf of(const QueuePair& qp, uint64_t message);
  static StepOf of(const Packet& packet);

 private:
  uint32_t number_of(const Fiber& fiber);
  void add(const Step& step);

  size_t most_steps_;
  std::vector<Step> steps_;
  std::vector<Thread> threads_;
  std::unordered_map<const Fiber*, uint32_t> thread_numbers_;
  std::vector<Post> posts_;
  std::vector<Placed> placed_;
  std::vector<Taken> taken_;
  Time complete_until_ = kNever;
  Step next_charge_{.kind = StepKind::kOtherWork};
  Time missed_ = 0;
};

}  // namespace verbena::sim
