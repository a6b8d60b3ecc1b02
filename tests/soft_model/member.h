// Carries out the plan on soft0, as one of several members, and compares with the model.
#pragma once

#include <cstdint>
#include <vector>

#include "src/base/runtime.h"
#include "tests/soft_model/books.h"
#include "tests/soft_model/generator.h"
#include "tests/soft_model/model.h"
#include "tests/soft_model/objects.h"
#include "tests/soft_model/world.h"

namespace verbena::soft_model {

class Member {
 public:
  Member(World& world, const Life& life, uint32_t index);
  Member(const Member&) = delete;
  Member& operator=(const Member&) = delete;
  ~Member();
  void run();

 private:
  void begin();
  void run_round(uint32_t number);
  void renew(const Round& plan);
  void work(const Round& plan);
  void wait_for_all(const Round& plan);
  void post_some(uint32_t end, const Round& plan);
  void post_receives(uint32_t end, uint32_t* count);
  void change_regions();
  bool poll_all();
  bool poll_extended(ibv_cq_ex* cq);
  void sleep();
  void expect(uint32_t end, size_t count);
  bool all_done(const Round& plan) const;
  bool sends_done(uint32_t end) const;
  void take_tickets(const Round& plan, Notice& notice);
  void compare();
  bool may_differ(uint64_t offset) const;
  void wait_until_sent(uint32_t end);
  void idle();

  World& world_;
  const Life& life_;
  const uint32_t index_;
  Model model_;
  Generator generator_;
  Books books_;
  Objects objects_;
  Random random_;
  Notices notices_ = {};
  uint32_t round_ = 0;
  uint64_t progress_ns_ = 0;
  std::vector<uint32_t> own_;   // queue pairs
  std::vector<size_t> next_;    // request of each
  std::vector<uint32_t> late_;  // receives of each that are still to be posted
  uint32_t late_shared_ = 0;
  std::vector<uint64_t> words_;      // that everybody counts up, at the begin of the round
  std::vector<ibv_mr*> extra_ = {};  // regions that nobody uses
};

}  // namespace verbena::soft_model
