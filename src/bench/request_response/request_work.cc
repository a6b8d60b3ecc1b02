#include "src/bench/request_response/request_work.h"

namespace verbena::bench {

void MessageWork::fill(uint32_t slot, char* request) {
  PayloadPattern(key_, Direction::kRequest, first_slot_ + slot, sequence_[slot])
      .fill({request, request_bytes_});
}

bool MessageWork::is_right(uint32_t slot, std::span<const char> response) {
  const PayloadPattern expected(key_, Direction::kResponse, first_slot_ + slot, sequence_[slot]++);
  return response.size() == response_bytes_ && expected.matches(response);
}

}  // namespace verbena::bench
