// Status and Result<T>: how every boundary call of Verbena reports failure.
//
// An error carries a code for programs and one line for people: the cause, the limit that was hit
// (what was asked and what there is) and the remedy. Nothing in Verbena throws across its API.
// "Would block" is not an error: calls that can be retried say so in their return value.
//
//   verbena::Result<verbena::Device> device = verbena::Device::open("soft0");
//   if (!device.ok()) { std::cerr << device.status().message() << '\n'; return 1; }
#pragma once

#include <cassert>
#include <optional>
#include <string>
#include <utility>

namespace verbena {

enum class StatusCode {
  kOk,
  kInvalidArgument,    // the caller asked for something no device could do
  kNotFound,           // no such device, file, peer
  kLimitExceeded,      // a limit of the device, the process or the machine was hit
  kPermissionDenied,   // the operating system or a peer refused
  kUnavailable,        // the peer is gone, the port is in use, the connection broke
  kTimeout,            // the peer did not answer in time
  kProtocolViolation,  // a peer sent what the protocol does not allow
  kUnsupported,        // this device or machine cannot do that
  kInternal,           // a defect of Verbena
};

// The name of a code in lower case with underscores, for logs and JSON.
const char* status_code_name(StatusCode code);

class [[nodiscard]] Status {
 public:
  Status() = default;
  // Control characters of `message`, which may quote a peer or a file, become '?'.
  Status(StatusCode code, std::string message);

  static Status ok_status() { return {}; }

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  // One line, fit for a terminal, without a trailing newline; empty when ok().
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

// A value, or the Status that says why there is none.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}                                  // NOLINT
  Result(Status status) : status_(std::move(status)) { assert(!status_.ok()); }  // NOLINT

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }

  T& value() & {
    assert(ok());
    return *value_;
  }
  const T& value() const& {
    assert(ok());
    return *value_;
  }
  T&& value() && {
    assert(ok());
    return std::move(*value_);
  }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }

 private:
  std::optional<T> value_;
  Status status_;
};

// Returns from the enclosing function with the error of `expression`, if it has one.
#define VERBENA_RETURN_IF_ERROR(expression)            \
  do {                                                 \
    ::verbena::Status verbena_status_ = (expression);  \
    if (!verbena_status_.ok()) return verbena_status_; \
  } while (false)

#define VERBENA_CONCAT_INNER(a, b) a##b
#define VERBENA_CONCAT(a, b) VERBENA_CONCAT_INNER(a, b)

// `VERBENA_ASSIGN_OR_RETURN(auto x, f());`: x takes the value of f(), or the enclosing function
// returns f()'s error.
#define VERBENA_ASSIGN_OR_RETURN(declaration, expression) \
  VERBENA_ASSIGN_OR_RETURN_INNER(VERBENA_CONCAT(verbena_result_, __LINE__), declaration, expression)
#define VERBENA_ASSIGN_OR_RETURN_INNER(result, declaration, expression) \
  auto result = (expression);                                           \
  if (!result.ok()) return result.status();                             \
  declaration = std::move(result).value()

}  // namespace verbena
