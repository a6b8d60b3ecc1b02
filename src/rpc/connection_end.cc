#include "src/rpc/connection_end.h"

#include <fmt/format.h>

#include <cstring>

namespace verbena::rpc {

Status receives_refused(int error) {
  return Status(StatusCode::kLimitExceeded,
                fmt::format("the device does not take the receives ({})", std::strerror(error)));
}

}  // namespace verbena::rpc
