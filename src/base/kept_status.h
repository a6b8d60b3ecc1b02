// A Status that an object keeps and that is nearly always ok: then it takes a pointer. A simulated
// cluster has millions of connections in one process.
#pragma once

#include <memory>
#include <utility>

#include "verbena/status.h"

namespace verbena {

class KeptStatus {
 public:
  KeptStatus() = default;
  // The result is what is kept now, until the next assignment.
  const Status& operator=(Status status) {
    failure_ = status.ok() ? nullptr : std::make_unique<const Status>(std::move(status));
    return get();
  }

  bool ok() const { return failure_ == nullptr; }
  StatusCode code() const { return ok() ? StatusCode::kOk : failure_->code(); }
  const Status& get() const {
    static const Status fine;
    return ok() ? fine : *failure_;
  }

 private:
  std::unique_ptr<const Status> failure_;
};

}  // namespace verbena
