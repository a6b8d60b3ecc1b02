// The places in a region that one operation after the other uses.
#pragma once

#include <cstdint>

#include "src/base/assert.h"
#include "src/base/runtime.h"
#include "src/bench/verbs/verbs_settings.h"

namespace verbena::bench {

// The region is cut into pieces of one size. In sequence they lie behind each other without gaps,
// and the first one follows the last; at random each is as likely as the other, every time.
class PlaceSequence {
 public:
  PlaceSequence(AccessPattern pattern, uint64_t region_bytes, uint64_t piece_bytes, uint64_t seed)
      : random_places_(pattern == AccessPattern::kRandom),
        piece_bytes_(piece_bytes),
        pieces_(region_bytes / piece_bytes),
        random_(seed) {
    VERBENA_ASSERT(pieces_ >= 1);
  }

  // Where the next piece begins.
  uint64_t next() {
    if (random_places_) return random_.below(pieces_) * piece_bytes_;
    const uint64_t place = next_;
    next_ = place + 1 == pieces_ ? 0 : place + 1;
    return place * piece_bytes_;
  }

 private:
  bool random_places_;
  uint64_t piece_bytes_;
  uint64_t pieces_;
  uint64_t next_ = 0;
  Random random_;
};

}  // namespace verbena::bench
