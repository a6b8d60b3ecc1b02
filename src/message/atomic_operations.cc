#include "src/message/atomic_operations.h"

#include <cfloat>
#include <complex>
#include <cstddef>
#include <type_traits>

#include "src/base/assert.h"
#include "verbena/data_path.h"

namespace verbena {
namespace {

template <typename T>
constexpr bool kIsComplex = !std::is_arithmetic_v<T>;

// Calls `action` with a value of the type.
template <typename Action>
auto with_type(AtomicType type, Action&& action) {
  switch (type) {
    case AtomicType::kInt8:
      return action(int8_t{});
    case AtomicType::kUint8:
      return action(uint8_t{});
    case AtomicType::kInt16:
      return action(int16_t{});
    case AtomicType::kUint16:
      return action(uint16_t{});
    case AtomicType::kInt32:
      return action(int32_t{});
    case AtomicType::kUint32:
      return action(uint32_t{});
    case AtomicType::kInt64:
      return action(int64_t{});
    case AtomicType::kUint64:
      return action(uint64_t{});
    case AtomicType::kFloat:
      return action(float{});
    case AtomicType::kDouble:
      return action(double{});
    case AtomicType::kFloatComplex:
      return action(std::complex<float>{});
    case AtomicType::kDoubleComplex:
      return action(std::complex<double>{});
    case AtomicType::kLongDouble:
      return action(static_cast<long double>(0));
    case AtomicType::kLongDoubleComplex:
      return action(std::complex<long double>{});
  }
  VERBENA_ASSERT(false);
  return action(uint8_t{});
}

// Integers wrap around.
template <typename T>
T sum(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  } else {
    return a + b;
  }
}
template <typename T>
T product(T a, T b) {
  if constexpr (std::is_integral_v<T>) {
    return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  } else {
    return a * b;
  }
}

template <typename T>
bool is_true(T value) {
  return value != T{};
}

// What becomes of `value`. Operations that the type has not are never asked for.
template <typename T>
T changed(AtomicOperation operation, T value, T operand, T compared) {
  switch (operation) {
    case AtomicOperation::kSum:
      return sum(value, operand);
    case AtomicOperation::kProduct:
      return product(value, operand);
    case AtomicOperation::kLogicalOr:
      return static_cast<T>(is_true(value) || is_true(operand) ? 1 : 0);
    case AtomicOperation::kLogicalAnd:
      return static_cast<T>(is_true(value) && is_true(operand) ? 1 : 0);
    case AtomicOperation::kLogicalXor:
      return static_cast<T>(is_true(value) != is_true(operand) ? 1 : 0);
    case AtomicOperation::kRead:
      return value;
    case AtomicOperation::kWrite:
      return operand;
    case AtomicOperation::kSwapIfEqual:
      return compared == value ? operand : value;
    case AtomicOperation::kSwapIfNotEqual:
      return compared != value ? operand : value;
    default:
      break;
  }
  if constexpr (!kIsComplex<T>) {
    switch (operation) {
      case AtomicOperation::kMin:
        return operand < value ? operand : value;
      case AtomicOperation::kMax:
        return operand > value ? operand : value;
      case AtomicOperation::kSwapIfLessOrEqual:
        return compared <= value ? operand : value;
      case AtomicOperation::kSwapIfLess:
        return compared < value ? operand : value;
      case AtomicOperation::kSwapIfGreaterOrEqual:
        return compared >= value ? operand : value;
      case AtomicOperation::kSwapIfGreater:
        return compared > value ? operand : value;
      default:
        break;
    }
  }
  if constexpr (std::is_integral_v<T>) {
    switch (operation) {
      case AtomicOperation::kBitOr:
        return static_cast<T>(value | operand);
      case AtomicOperation::kBitAnd:
        return static_cast<T>(value & operand);
      case AtomicOperation::kBitXor:
        return static_cast<T>(value ^ operand);
      case AtomicOperation::kSwapMasked:
        return static_cast<T>((operand & compared) | (value & ~compared));
      default:
        break;
    }
  }
  VERBENA_ASSERT(false);
  return value;
}

// All but padding, which is of this thread's stack.
template <typename T>
void store(char* to, T value) {
  constexpr size_t kLongDoubleBytes = LDBL_MANT_DIG == 64 ? 10 : sizeof(long double);
  if constexpr (std::is_same_v<T, std::complex<long double>>) {
    store(to, value.real());
    store(to + sizeof(long double), value.imag());
  } else {
    copy_bytes(to, &value, std::is_same_v<T, long double> ? kLongDoubleBytes : sizeof(T));
  }
}

template <typename T>
void apply_to(AtomicOperation operation, char* values, const char* operands, const char* compared,
              char* before, uint64_t count) {
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t at = i * sizeof(T);
    T value{};
    T operand{};
    T other{};
    copy_bytes(&value, values + at, sizeof(T));
    if (operands != nullptr) copy_bytes(&operand, operands + at, sizeof(T));
    if (compared != nullptr) copy_bytes(&other, compared + at, sizeof(T));
    if (before != nullptr) copy_bytes(before + at, values + at, sizeof(T));
    if (operation == AtomicOperation::kRead) continue;
    store(values + at, changed(operation, value, operand, other));
  }
}

}  // namespace

uint32_t atomic_bytes(AtomicType type) {
  return with_type(type, [](auto value) { return static_cast<uint32_t>(sizeof(value)); });
}

bool has_atomic(AtomicType type, AtomicOperation operation) {
  if (static_cast<uint32_t>(type) >= message::kAtomicTypes) return false;
  switch (operation) {
    case AtomicOperation::kBitOr:
    case AtomicOperation::kBitAnd:
    case AtomicOperation::kBitXor:
    case AtomicOperation::kSwapMasked:
      return with_type(type, [](auto value) { return std::is_integral_v<decltype(value)>; });
    case AtomicOperation::kMin:
    case AtomicOperation::kMax:
    case AtomicOperation::kSwapIfLessOrEqual:
    case AtomicOperation::kSwapIfLess:
    case AtomicOperation::kSwapIfGreaterOrEqual:
    case AtomicOperation::kSwapIfGreater:
      return with_type(type, [](auto value) { return !kIsComplex<decltype(value)>; });
    default:
      return static_cast<uint32_t>(operation) < message::kAtomicOperations;
  }
}

namespace message {

void apply_atomic(AtomicType type, AtomicOperation operation, char* values, const char* operands,
                  const char* compared, char* before, uint64_t count) {
  with_type(type, [&](auto value) {
    apply_to<decltype(value)>(operation, values, operands, compared, before, count);
  });
}

}  // namespace message
}  // namespace verbena
