#include "src/bench/request_response/answer_loop.h"

namespace verbena::bench {

bool AnswerWork::verify(const Request& request, std::span<char> response) {
  const uint64_t key = keys_[request.connection];
  const uint64_t sequence = sequence_[uint64_t{request.connection} * pending_ + request.slot]++;
  PayloadPattern(key, Direction::kResponse, request.slot, sequence)
      .fill(response.first(response_bytes_));
  return PayloadPattern(key, Direction::kRequest, request.slot, sequence).matches(request.bytes);
}

}  // namespace verbena::bench
