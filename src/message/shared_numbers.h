// Numbers that connections share, so that one whose peer has stopped cannot take those of all: each
// can always have one, and of the others no more than are left.
#pragma once

#include <cstdint>

#include "src/base/assert.h"
#include "src/message/number_pool.h"

namespace verbena::message {

class SharedNumbers {
 public:
  SharedNumbers(uint32_t connections, uint32_t others)
      : pool_(connections + others), others_left_(others) {}

  uint32_t in_use() const { return pool_.in_use(); }
  // All numbers that were ever handed out are below it.
  uint32_t used_ever() const { return pool_.used_ever(); }
  // Whether a connection that has `own` of them may have one more.
  bool grants(uint32_t own) const { return own == 0 || own - 1 < others_left_; }
  // Needs grants(own), which it counts.
  uint32_t take(uint32_t* own) {
    VERBENA_ASSERT(grants(*own));
    if (*own > 0) --others_left_;
    ++*own;
    const uint32_t number = pool_.take();
    VERBENA_ASSERT(number != NumberPool::kNone);
    return number;
  }
  void give_back(uint32_t number, uint32_t* own) {
    VERBENA_ASSERT(*own > 0);
    --*own;
    if (*own > 0) ++others_left_;
    pool_.give_back(number);
  }

 private:
  NumberPool pool_;
  uint32_t others_left_;
};

}  // namespace verbena::message
