// A rank's calls, made again with tagged messages: those between two ranks as they are, collective
// operations by the schedules of replay_schedule.h, and the time between them as computing, during
// which no message moves here, as in an MPI program.
//
// An operation is the whole program, between two barriers. No call waits for anything that its MPI
// call had not to wait for: what cannot be sent yet is sent while others are waited for, and
// collective operations that were started go on meanwhile.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "src/bench/message/message_rank.h"
#include "src/bench/message/replay_memory.h"
#include "src/bench/message/replay_report.h"
#include "src/bench/message/replay_schedule.h"
#include "src/trace/recording.h"
#include "verbena/status.h"

namespace verbena::bench {

class MessageReplay final : NamedOperations {
 public:
  explicit MessageReplay(MessageRank& rank) : rank_(rank) {}
  ~MessageReplay() = default;
  MessageReplay(const MessageReplay&) = delete;
  MessageReplay& operator=(const MessageReplay&) = delete;

  Status open();
  void begin(const Phase& phase);
  // All calls, in the phase that measures the cost of messages the barriers alone. False: the phase
  // has ended before, or see status() of the rank.
  bool run();
  uint64_t operations() const { return operations_; }
  // Takes back what an ended phase has left.
  void abandon();

 private:
  // A message that is under way, by its name.
  struct Slot {
    uint64_t bytes = 0;
    uint32_t request = 0;     // of the program's
    uint32_t collective = 0;  // number in collectives_, from 1 on
    bool receives = false;
    bool blocks = false;  // the call that is being made
    bool used = false;
  };
  struct Deferred {
    uint64_t place = 0;
    char* bytes = nullptr;
    uint64_t size_bytes = 0;
    uint32_t peer = 0;
    uint32_t name = 0;
    bool synchronous = false;
  };
  struct Collective {
    std::vector<ReplayStep> steps;
    size_t at = 0;
    uint32_t pending = 0;
    uint32_t request = 0;
    uint64_t place = 0;
    bool is_over = true;
  };

  void done(uint32_t name, const MessageCompletion& completion) override;

  bool barrier();
  bool replay();
  bool call(const trace::Event& event);
  bool compute(uint64_t duration_ns) const;
  bool message(const trace::Event& event);
  uint32_t start_collective(const trace::Event& event, std::span<const uint32_t> members,
                            std::span<const uint64_t> list);
  // Until it is over.
  bool finish(uint32_t collective);
  bool wait(const trace::Event& event);
  bool drain();
  // Looks for messages, and lets everything go on that can.
  bool look();
  void advance_collectives();
  void advance(Collective& collective);

  uint32_t name_slot(const Slot& slot);
  void send(const Deferred& message);
  void receive(const Deferred& message);
  void retry();

  MessageRank& rank_;
  std::shared_ptr<const trace::RecordedJob> job_;
  const trace::RankRecording* recording_ = nullptr;
  std::optional<ReplayMemory> memory_;
  std::vector<uint32_t> everybody_;

  std::vector<Slot> slots_;
  std::vector<uint32_t> free_slots_;
  uint32_t used_slots_ = 0;
  std::vector<std::deque<Deferred>> deferred_sends_;  // by peer, in their order
  std::deque<Deferred> deferred_receives_;
  uint32_t deferred_ = 0;  // in both
  std::vector<Collective> collectives_;
  std::vector<uint32_t> active_;      // of these
  std::vector<uint64_t> ordinals_;    // by communicator, and at the end of the barriers
  std::vector<uint8_t> is_complete_;  // by request
  bool is_blocked_ = false;

  PhaseKind kind_ = PhaseKind::kWarmUp;
  uint64_t operations_ = 0;
  ReplayReport report_;
};

}  // namespace verbena::bench
