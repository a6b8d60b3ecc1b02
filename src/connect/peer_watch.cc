#include "src/connect/peer_watch.h"

namespace verbena::connect {

bool PeerWatch::period_is_over() {
  looks_ = 0;
  const uint64_t now = now_ns();
  if (now - last_ns_ < kPeriodNs) return false;
  last_ns_ = now;
  return true;
}

}  // namespace verbena::connect
