#include "src/device/sim/places.h"

#include <gtest/gtest.h>

namespace verbena::sim {
namespace {

TEST(PlacesTest, WhatComesWhenAllAreTakenWaitsForTheFirstThatEnds) {
  Places places;
  places.configure(2);
  EXPECT_EQ(places.serve(0, 100, 0), 100u);
  EXPECT_EQ(places.serve(10, 50, 0), 60u);
  EXPECT_EQ(places.serve(20, 100, 0), 160u);  // from 60 on
  EXPECT_EQ(places.serve(30, 10, 0), 110u);   // from 100 on
  EXPECT_EQ(places.serve(500, 10, 0), 510u);
}

TEST(PlacesTest, WhatIsKeptByOtherThingsKeepsItsPlace) {
  Places places;
  places.configure(1);
  EXPECT_EQ(places.serve(0, 10, 70), 70u);
  EXPECT_EQ(places.serve(5, 10, 0), 80u);
}

TEST(PlacesTest, AllOfThemAllTheTimeIsAllOfTheTime) {
  Places places;
  places.configure(2);
  places.serve(0, 100, 0);
  EXPECT_EQ(places.busy(50), 25u);
  places.serve(50, 100, 0);
  places.serve(50, 100, 0);  // from 100 to 200
  EXPECT_EQ(places.busy(50), 25u);
  EXPECT_EQ(places.busy(100), 75u);
  EXPECT_EQ(places.busy(150), 125u);
  EXPECT_EQ(places.busy(1000), 150u);
}

}  // namespace
}  // namespace verbena::sim
