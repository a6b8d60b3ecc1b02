#include "src/bench/explain/function_share.h"

#include <gtest/gtest.h>

namespace verbena::bench {
namespace {

TEST(FunctionShare, NamesAreShort) {
  EXPECT_EQ(short_function_name("memcpy"), "memcpy");
  EXPECT_EQ(short_function_name("verbena::poll(int, ibv_wc*)"), "verbena::poll");
  EXPECT_EQ(short_function_name("A::B<C<int>, (D)1>::run<E>(F<G> const&) const"), "A::B::run");
  EXPECT_EQ(short_function_name("verbena::(anonymous namespace)::copy(char*)"),
            "verbena::(anonymous namespace)::copy");
  EXPECT_EQ(short_function_name("A<B>::operator()(int) const"), "A::operator()");
  EXPECT_EQ(short_function_name("unsigned int a::B<int>::poll<C>(C&&)"), "a::B::poll");
  EXPECT_EQ(short_function_name("a::D<int> a::(anonymous namespace)::run<C>(C&&)"),
            "a::(anonymous namespace)::run");
  EXPECT_EQ(short_function_name("operator new(unsigned long)"), "operator new");
}

TEST(FunctionShare, LargestComeFirstAndSmallOnesAreLeftOut) {
  const std::vector<FunctionShare> shares =
      largest_shares({{"copy", 30}, {"dust", 0.1}, {"poll", 60}, {"post", 9.9}});
  ASSERT_EQ(shares.size(), 3u);
  EXPECT_EQ(shares[0].function, "poll");
  EXPECT_DOUBLE_EQ(shares[0].share, 0.6);
  EXPECT_EQ(shares[2].function, "post");
  EXPECT_TRUE(largest_shares({}).empty());
}

}  // namespace
}  // namespace verbena::bench
