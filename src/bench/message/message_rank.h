// One rank of a micro-benchmark: its messenger, whom it knows, and sends and receives as an MPI
// program makes them. What waits returns false once the phase ends or something has failed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "src/base/runtime.h"
#include "src/base/silence_watch.h"
#include "src/bench/load/poll_cost.h"
#include "src/bench/message/message_settings.h"
#include "src/bench/run/coordination.h"
#include "src/bench/run/node_job.h"
#include "verbena/message.h"
#include "verbena/status.h"

namespace verbena::bench {

// Who is told that operations of post_send() and post_receive() are done.
class NamedOperations {
 public:
  virtual void done(uint32_t name, const MessageCompletion& completion) = 0;

 protected:
  ~NamedOperations() = default;
};

class MessageRank {
 public:
  // `number`: rank 0 is the one that measures.
  MessageRank(NodeJob& job, uint32_t number)
      : job_(job),
        settings_(message_settings(job.setup.point)),
        number_(number),
        size_(message_ranks(job.setup.point)) {}

  Status open();
  MessengerAddress address() const { return messenger_->address(); }
  // Of all ranks, in their order.
  Status know(std::span<const MessengerAddress> addresses);
  // Connects rank 0 with all others: each sends a message to the other.
  Status meet();

  uint32_t number() const { return number_; }
  uint32_t size() const { return size_; }
  const MessageSettings& settings() const { return settings_; }
  NodeJob& job() { return job_; }
  bool verifies() const { return verify_; }
  const Status& status() const { return status_; }
  // Nothing more is waited for.
  void give_up(Status why) { fail(std::move(why)); }
  Messenger& messenger() { return *messenger_; }

  // --- a phase ---

  void begin(const Phase& phase);
  // Takes back receives that nothing came for, and waits for those that something is coming for.
  // What rank 0 has not waited for, nobody will. `partners` are the ranks beside rank 0 that long
  // messages come from and go to: unless the receiver READs one, it comes only as long as its
  // sender makes progress, so all go on until each has said that it waits for nothing any more.
  void abandon(std::span<const uint32_t> partners);
  // Adds what was counted since begin(); `operations` are those of this rank.
  void end(Report& report, uint64_t operations);

  // --- messages of this phase; `step` tells those of one operation apart ---

  bool send(uint32_t to, uint32_t step, const char* bytes, uint64_t size_bytes);
  bool receive(uint32_t from, uint32_t step, char* bytes, uint64_t size_bytes);
  // Of the memory that rank `there` exposes, from its beginning on; wait_sends() ends it.
  bool put(uint32_t there, const char* bytes, uint64_t size_bytes);
  bool get(uint32_t there, char* bytes, uint64_t size_bytes);
  // Before they are used.
  bool expose(char* bytes, uint64_t size_bytes);
  // Until no more than so many receives wait for a message.
  bool wait_receives(uint32_t left = 0);
  // Until all buffers that were sent from may be used again.
  bool wait_sends();
  bool wait_all();
  // One look, where nothing is waited for.
  bool idle() { return advance(); }
  uint32_t pending_receives() const { return pending_receives_; }
  uint32_t pending_sends() const { return pending_sends_; }

  // --- operations that are told apart, each by a name above 0; wait_...() do not see them ---

  void tell(NamedOperations* operations) { named_ = operations; }
  // One attempt. `place`, 48 bits, is in the message's tag; kFailed is in status().
  PostResult post_send(uint32_t to, uint64_t place, const char* bytes, uint64_t size_bytes,
                       uint32_t name, bool synchronous);
  PostResult post_receive(uint32_t from, uint64_t place, char* bytes, uint64_t size_bytes,
                          uint32_t name);
  // Takes a receive back, unless something is coming for it. It is told of no more.
  void forget_receive(uint32_t name) { messenger_->cancel(context(/*receive=*/true, name)); }

  // The bytes of message number `sequence` of rank `from`.
  void fill(char* bytes, uint64_t size_bytes, uint32_t from, uint64_t sequence) const;
  void check(const char* bytes, uint64_t size_bytes, uint32_t from, uint64_t sequence);
  void note_mismatch() { ++mismatches_; }
  void note_collective(uint64_t duration_ns) {
    ++collectives_;
    collective_ns_ += duration_ns;
  }

 private:
  // One look, and what follows from it. False: see above.
  bool advance();
  bool look_around();
  void take(const MessageCompletion& done);
  bool access(uint32_t there, char* bytes, uint64_t size_bytes, bool puts);
  // The same, but whether the phase has ended or not.
  void look();
  // False: it would block, or see above.
  bool try_send(uint32_t to, uint32_t step, const char* bytes, uint64_t size_bytes);
  bool try_receive(uint32_t from, uint32_t step, char* bytes, uint64_t size_bytes);
  void fail_for(PeerNumber peer) {
    const Status& why = messenger_->peer_status(peer);
    fail(why.ok() ? messenger_->error() : why);
  }
  void fail(Status status) {
    if (status_.ok()) status_ = std::move(status);
  }
  void* context(bool receive, uint32_t name = 0) const;
  PostResult posted(PostResult result, PeerNumber peer);
  uint64_t tag(uint32_t step) const { return uint64_t{phase_} << 32 | step; }
  uint64_t named_tag(uint64_t place) const {
    return uint64_t{1} << 63 | uint64_t{phase_ & 0x7fff} << 48 | place;
  }

  NodeJob& job_;
  const MessageSettings& settings_;
  const uint32_t number_;
  const uint32_t size_;
  std::unique_ptr<Messenger> messenger_;
  std::vector<PeerNumber> peers_;  // by rank
  NamedOperations* named_ = nullptr;
  Waiter waiter_;
  SilenceWatch silence_{kStallNs, 0};
  uint64_t steps_ = 0;
  uint32_t empty_polls_ = 0;  // since something was found or posted
  uint32_t looks_ = 0;
  Status status_;

  // --- of the phase ---
  uint32_t phase_ = 0;
  bool verify_ = false;
  bool costs_ = false;
  char nothing_ = 0;
  uint32_t pending_receives_ = 0;
  uint32_t pending_sends_ = 0;
  uint64_t mismatches_ = 0;
  uint64_t cost_cycles_ = 0;
  uint64_t collectives_ = 0;
  uint64_t collective_ns_ = 0;
  MessengerStatistics before_;
  std::optional<MessengerStatistics> after_;  // of who has abandoned it
};

}  // namespace verbena::bench
