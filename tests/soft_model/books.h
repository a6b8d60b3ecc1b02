// What a member waits for, and whether what comes is what the model says.
#pragma once

#include <infiniband/verbs.h>

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "tests/soft_model/model.h"
#include "tests/soft_model/plan.h"
#include "tests/soft_model/world.h"

namespace verbena::soft_model {

// Of one queue pair.
struct EndBooks {
  std::deque<Sent> posted = {};        // requests that may still complete
  std::deque<uint64_t> receives = {};  // the numbers of receives of its own, the oldest first
  uint64_t next_receive = 0;
  uint32_t flushes_due = 0;
  bool is_cut = false;          // the victim ends it
  bool sends_ended = false;     // by the victim's end
  bool receives_ended = false;  // the same
  std::deque<std::string> journal = {};
};

class Books {
 public:
  Books(const Life& life, Model& model, uint32_t member);

  void begin_round(uint32_t round, const Round& plan, const Notices& notices);
  EndBooks& end(uint32_t index) { return ends_[index]; }
  // The slots of the shared queue that are free, and what is in the others.
  std::vector<uint32_t>& free_slots() { return free_slots_; }
  std::map<uint32_t, uint64_t>& shared() { return shared_; }
  uint64_t next_shared = 0;

  void note(uint32_t end, std::string line);
  // Checks a completion against the prediction, and puts its message into the model's image.
  void take(const ibv_wc& wc);
  // Whether a queue pair has got all that it gets in this round.
  bool is_done(uint32_t end) const;
  // Prints where it went wrong, how to see it again, and the last steps of the queue pair (kNobody:
  // none), and ends the process.
  [[noreturn]] void fail(uint32_t end, const std::string& what) const;
  std::string waiting() const;

 private:
  void take_send(uint32_t end, const ibv_wc& wc);
  void take_receive(uint32_t end, const ibv_wc& wc);
  void take_flush(uint32_t end, const ibv_wc& wc);
  void check_message(uint32_t end, const Message& message, const ibv_wc& wc) const;
  uint64_t claim(uint32_t end, const ibv_wc& wc, uint32_t* slot);
  std::string describe(uint32_t end) const;

  const Life& life_;
  Model& model_;
  const uint32_t member_;
  uint32_t round_ = 0;
  Notices notices_ = {};
  std::map<uint32_t, uint32_t> numbers_ = {};  // of queue pairs, to ends
  std::vector<EndBooks> ends_;
  std::vector<uint32_t> free_slots_ = {};
  std::map<uint32_t, uint64_t> shared_ = {};
};

}  // namespace verbena::soft_model
