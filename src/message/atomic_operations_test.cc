#include "src/message/atomic_operations.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <complex>
#include <cstring>
#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "src/base/runtime.h"

namespace verbena::message {
namespace {

constexpr auto kAllOperations = [] {
  std::array<AtomicOperation, kAtomicOperations> all{};
  for (uint32_t i = 0; i < kAtomicOperations; ++i) all[i] = static_cast<AtomicOperation>(i);
  return all;
}();

template <typename T>
struct TypeNumber;
template <>
struct TypeNumber<int8_t> : std::integral_constant<AtomicType, AtomicType::kInt8> {};
template <>
struct TypeNumber<uint8_t> : std::integral_constant<AtomicType, AtomicType::kUint8> {};
template <>
struct TypeNumber<int16_t> : std::integral_constant<AtomicType, AtomicType::kInt16> {};
template <>
struct TypeNumber<uint16_t> : std::integral_constant<AtomicType, AtomicType::kUint16> {};
template <>
struct TypeNumber<int32_t> : std::integral_constant<AtomicType, AtomicType::kInt32> {};
template <>
struct TypeNumber<uint32_t> : std::integral_constant<AtomicType, AtomicType::kUint32> {};
template <>
struct TypeNumber<int64_t> : std::integral_constant<AtomicType, AtomicType::kInt64> {};
template <>
struct TypeNumber<uint64_t> : std::integral_constant<AtomicType, AtomicType::kUint64> {};
template <>
struct TypeNumber<float> : std::integral_constant<AtomicType, AtomicType::kFloat> {};
template <>
struct TypeNumber<double> : std::integral_constant<AtomicType, AtomicType::kDouble> {};
template <>
struct TypeNumber<long double> : std::integral_constant<AtomicType, AtomicType::kLongDouble> {};
template <>
struct TypeNumber<std::complex<float>>
    : std::integral_constant<AtomicType, AtomicType::kFloatComplex> {};
template <>
struct TypeNumber<std::complex<double>>
    : std::integral_constant<AtomicType, AtomicType::kDoubleComplex> {};
template <>
struct TypeNumber<std::complex<long double>>
    : std::integral_constant<AtomicType, AtomicType::kLongDoubleComplex> {};

template <typename T>
constexpr bool kOrdered = std::is_arithmetic_v<T>;

// What the operations mean, in the words of the standard library.
template <typename T>
T expected(AtomicOperation operation, T value, T operand, T compared) {
  const T zero{};
  const auto truth = [](bool is) { return is ? T(1) : T(0); };
  switch (operation) {
    case AtomicOperation::kSum:
      return static_cast<T>(value + operand);
    case AtomicOperation::kProduct:
      return static_cast<T>(value * operand);
    case AtomicOperation::kLogicalOr:
      return truth(value != zero || operand != zero);
    case AtomicOperation::kLogicalAnd:
      return truth(value != zero && operand != zero);
    case AtomicOperation::kLogicalXor:
      return truth((value != zero) != (operand != zero));
    case AtomicOperation::kRead:
      return value;
    case AtomicOperation::kWrite:
      return operand;
    case AtomicOperation::kSwapIfEqual:
      return compared == value ? operand : value;
    case AtomicOperation::kSwapIfNotEqual:
      return compared == value ? value : operand;
    default:
      break;
  }
  if constexpr (kOrdered<T>) {
    switch (operation) {
      case AtomicOperation::kMin:
        return std::min(value, operand);
      case AtomicOperation::kMax:
        return std::max(value, operand);
      case AtomicOperation::kSwapIfLessOrEqual:
        return compared > value ? value : operand;
      case AtomicOperation::kSwapIfLess:
        return compared >= value ? value : operand;
      case AtomicOperation::kSwapIfGreaterOrEqual:
        return compared < value ? value : operand;
      case AtomicOperation::kSwapIfGreater:
        return compared <= value ? value : operand;
      default:
        break;
    }
  }
  if constexpr (std::is_integral_v<T>) {
    switch (operation) {
      case AtomicOperation::kBitOr:
        return std::bit_or<T>()(value, operand);
      case AtomicOperation::kBitAnd:
        return std::bit_and<T>()(value, operand);
      case AtomicOperation::kBitXor:
        return std::bit_xor<T>()(value, operand);
      case AtomicOperation::kSwapMasked:
        // Bit by bit.
        return std::bit_xor<T>()(value,
                                 std::bit_and<T>()(std::bit_xor<T>()(value, operand), compared));
      default:
        break;
    }
  }
  ADD_FAILURE() << "no reference for operation " << static_cast<int>(operation);
  return value;
}

// Small, so that nothing overflows and equal values are frequent; exact in every type.
template <typename T>
T draw(Random& random) {
  if constexpr (kOrdered<T>) {
    const int value = static_cast<int>(random.below(11)) - (std::is_signed_v<T> ? 5 : 0);
    return static_cast<T>(value);
  } else {
    using Part = typename T::value_type;
    return {draw<Part>(random), draw<Part>(random)};
  }
}

template <typename T>
class AtomicOperationTest : public testing::Test {};
using AllTypes = testing::Types<int8_t, uint8_t, int16_t, uint16_t, int32_t, uint32_t, int64_t,
                                uint64_t, float, double, long double, std::complex<float>,
                                std::complex<double>, std::complex<long double>>;
TYPED_TEST_SUITE(AtomicOperationTest, AllTypes);

TYPED_TEST(AtomicOperationTest, EveryOperationDoesWhatItSays) {
  constexpr AtomicType kType = TypeNumber<TypeParam>::value;
  EXPECT_EQ(atomic_bytes(kType), sizeof(TypeParam));
  Random random(7);
  uint32_t there = 0;
  for (const AtomicOperation operation : kAllOperations) {
    SCOPED_TRACE("operation " + std::to_string(static_cast<int>(operation)));
    if (!has_atomic(kType, operation)) continue;
    ++there;
    constexpr uint64_t kValues = 200;
    std::vector<TypeParam> values(kValues);
    std::vector<TypeParam> operands(kValues);
    std::vector<TypeParam> compared(kValues);
    for (uint64_t i = 0; i < kValues; ++i) {
      values[i] = draw<TypeParam>(random);
      operands[i] = draw<TypeParam>(random);
      compared[i] = draw<TypeParam>(random);
    }
    // At an odd address.
    std::vector<char> memory(kValues * sizeof(TypeParam) + 1);
    std::memcpy(memory.data() + 1, static_cast<const void*>(values.data()), memory.size() - 1);
    std::vector<TypeParam> before(kValues);
    apply_atomic(kType, operation, memory.data() + 1, reinterpret_cast<char*>(operands.data()),
                 reinterpret_cast<char*>(compared.data()), reinterpret_cast<char*>(before.data()),
                 kValues);
    for (uint64_t i = 0; i < kValues; ++i) {
      TypeParam after{};
      std::memcpy(static_cast<void*>(&after), memory.data() + 1 + i * sizeof(TypeParam),
                  sizeof(after));
      ASSERT_EQ(after, expected(operation, values[i], operands[i], compared[i]))
          << values[i] << " " << operands[i] << " " << compared[i];
      ASSERT_EQ(before[i], values[i]);
    }
  }
  EXPECT_EQ(there, std::is_integral_v<TypeParam> ? 19u : kOrdered<TypeParam> ? 15u : 9u);
}

// It would be what lay on the stack.
TEST(AtomicOperationsTest, PaddingStaysAsItIs) {
  for (const AtomicType type : {AtomicType::kLongDouble, AtomicType::kLongDoubleComplex}) {
    std::vector<char> values(2 * sizeof(long double), '\0');
    const std::vector<char> zeros = values;
    apply_atomic(type, AtomicOperation::kWrite, values.data(), zeros.data(), nullptr, nullptr,
                 values.size() / atomic_bytes(type));
    EXPECT_EQ(values, zeros);
  }
}

TEST(AtomicOperationsTest, IntegersWrapAround) {
  int8_t small = 127;
  const int8_t one = 1;
  apply_atomic(AtomicType::kInt8, AtomicOperation::kSum, reinterpret_cast<char*>(&small),
               reinterpret_cast<const char*>(&one), nullptr, nullptr, 1);
  EXPECT_EQ(small, -128);
  int64_t large = INT64_MIN;
  const int64_t minus_one = -1;
  apply_atomic(AtomicType::kInt64, AtomicOperation::kProduct, reinterpret_cast<char*>(&large),
               reinterpret_cast<const char*>(&minus_one), nullptr, nullptr, 1);
  EXPECT_EQ(large, INT64_MIN);
}

TEST(AtomicOperationsTest, WhatIsNoTypeOrOperationIsNotThere) {
  EXPECT_FALSE(has_atomic(static_cast<AtomicType>(kAtomicTypes), AtomicOperation::kSum));
  EXPECT_FALSE(has_atomic(AtomicType::kInt8, static_cast<AtomicOperation>(kAtomicOperations)));
  EXPECT_FALSE(has_atomic(AtomicType::kDouble, static_cast<AtomicOperation>(200)));
  EXPECT_FALSE(has_atomic(AtomicType::kDouble, AtomicOperation::kBitXor));
  EXPECT_FALSE(has_atomic(AtomicType::kFloatComplex, AtomicOperation::kMin));
}

}  // namespace
}  // namespace verbena::message
